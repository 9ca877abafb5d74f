"""The Python API of a fleet: runs with their events, and a client of a state directory. `fedpatch` exports its names."""
