"""Masked groups: their cost in rounds, bytes, processor time and time of a round, beside other ways to hide an update."""
