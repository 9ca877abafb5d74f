"""Decides whom to ask, when a round is over, and what the new global model is."""
