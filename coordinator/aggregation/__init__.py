"""From the updates of a round to the next global model: validation, norm bounds, weighted mean, strategies, model deltas.

Pure: no network, no clock, no thread, no disk. `cohort` and `rounds` choose the devices that take part.
"""
