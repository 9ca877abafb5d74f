"""The store of a run's checkpoints, updates, deltas, privacy account and exported model: files, or an object store.

Keys are paths below the run: `checkpoint-000012.fp`, `updates/000013/pi-07.fp`. No other package depends on the kind of store.
"""
