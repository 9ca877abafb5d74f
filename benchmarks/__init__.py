"""Measurements of fedpatch, each a command: `python -m benchmarks.simulation --help`. README.md says how to read them."""
