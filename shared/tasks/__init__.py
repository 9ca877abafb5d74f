"""Tasks: data, model, loss, metric, preparation of raw inputs, splits.

The tasks that ship with fedpatch are in `bundled`.
"""
