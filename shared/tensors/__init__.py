"""Named tensors: schema, patch policy, encodings, quantisation, error feedback, packing.

This room is pure: no network, clock, thread or torch. Models and training are no subject of it.
"""
