"""Owns its data, its private patches and its willingness to work."""
