"""What aggregation and stored updates cost the coordinator."""
