"""Checks for `doctor`: host, broker, access rights, certificates.

Checks of a task and its data are in `task_checks`.
"""
