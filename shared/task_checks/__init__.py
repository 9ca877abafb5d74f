"""`fedpatch check-task`: whether a task, its model and a device's data fit each other.

The same checks run when an agent or a simulation starts.
"""
