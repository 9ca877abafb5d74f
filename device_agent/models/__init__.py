"""Personal models for applications on the device: the store, prediction, evaluation.

They are made in `training`. Nothing here needs torch.
"""
