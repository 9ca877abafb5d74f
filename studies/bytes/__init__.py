"""Rounds and bytes to a target user accuracy, for every encoding."""
