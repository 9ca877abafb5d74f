"""Checks that a task, its model and a device's data fit each other, for `fedpatch check-task`.

An agent and a simulation run the data checks when they start.
"""
