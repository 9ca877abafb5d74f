"""Facts about the device: power, heat, network, load, each read within a time limit (docs/reference/conditions.md).

What they mean for the owner is decided in `policy`.
"""
