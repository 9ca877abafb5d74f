"""Protection of a run against devices that misbehave: rate limits, the filter of incoming messages, quarantine, revocations.

Bounds of the values in an update are in `aggregation`.
"""
