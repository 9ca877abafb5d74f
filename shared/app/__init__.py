"""What every program of fedpatch needs: command line, logging, signals, files, locks, clocks.

Nothing here knows about federated learning.
"""
