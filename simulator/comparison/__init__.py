"""Methods of personalisation beside learning alone, on several tasks and seeds: cells on disk, table, recommendation.

This package imports simulator.experiment, and is not imported by it.
"""
