"""Named tensors: schema, patch policy, encodings, quantisation, packing.

This room is pure: no network, clock, thread or torch. Models and training are no subject of it.
"""
