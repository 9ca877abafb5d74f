"""Runs the round in the simulators of other projects, in an environment of its own, without fedpatch."""
