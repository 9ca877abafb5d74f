"""Rules of aggregation under attacks, of fedpatch and of Flower."""
