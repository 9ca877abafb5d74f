"""Masked groups: secure aggregation after Bonawitz et al. 2017 in groups of at most 64 devices.

Keys, secret shares, sealed boxes, keystreams, the vector of a device, and the sum of a group. Both sides and the simulator use
this room. It is pure: no network, clock or thread, and random bytes are arguments. `cryptography` is imported in the functions
that need it, because it takes 12 MB of an agent's memory.
"""
