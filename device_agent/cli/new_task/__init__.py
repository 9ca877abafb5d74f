"""`fedpatch-agent new-task`: writes the skeleton of a new task.

The skeleton itself is in the templates beside it.
"""
