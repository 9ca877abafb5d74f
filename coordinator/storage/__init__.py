"""The coordinator's files: the SQLite registry, journals, checkpoints and updates, and their checks.

Nothing here knows the network.
"""
