"""Methods of personalisation beside learning alone, on several tasks and seeds: cells on disk, table, recommendation.

It imports the simulation of simulator.experiment; nothing there imports it.
"""
