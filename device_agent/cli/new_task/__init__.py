"""`fedpatch-agent new-task`: the skeleton of a task of one's own."""
