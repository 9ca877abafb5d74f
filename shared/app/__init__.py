"""Building blocks of every fedpatch program: command line, logging, signals, files, locks, clock.

No module here is specific to federated learning.
"""
