"""One simulation from start to end: options, rounds, checkpoints, output, plots, comparison of policies.

The paper's own experiments are in `paper`.
"""
