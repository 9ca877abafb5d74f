"""`fedpatch-agent new-task`: writes the skeleton of a new task.

The skeleton is in the templates beside this file.
"""
