"""Protection of a run against devices that misbehave: rate limits, the filter of incoming messages, quarantine, revocations.

The operator's requests to a running coordinator are here too: holds of devices, and the stop after a round.

Bounds of the values in an update are in `aggregation`.
"""
