"""Checks of `doctor`: host, broker, access rights, certificates.

Checks of a task and its data are in `shared.task_checks`.
"""
