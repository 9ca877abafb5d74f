"""Cost of aggregation and stored updates for the coordinator."""
