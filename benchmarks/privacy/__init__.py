"""Differential privacy by simulation: what the noise costs a small shared head, and what it does to a whole net."""
