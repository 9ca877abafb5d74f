"""The same round in the simulators of other projects. It runs in an environment of its own, without fedpatch."""
