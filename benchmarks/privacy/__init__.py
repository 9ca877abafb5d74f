"""Differential privacy by simulation: the effect of the noise on a small shared head and on a whole net."""
