"""Measurements of fedpatch, each a command: `python -m benchmarks.training.simulation --help` (README.md)."""
