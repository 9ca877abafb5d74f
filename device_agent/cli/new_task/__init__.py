"""`fedpatch-agent new-task`: writes the skeleton of a new task."""
