"""Facts about the device: power, heat, network, load, each read within a time limit (docs/reference/conditions.md).

What the owner makes of them is decided in `policy`.
"""
