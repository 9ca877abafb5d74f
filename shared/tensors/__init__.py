"""Named tensors: schema, patch policy, encodings, quantisation, error feedback, packing.

Pure: no network, no clock, no thread, no torch.
"""
