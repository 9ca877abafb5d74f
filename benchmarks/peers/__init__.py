"""The same round in other people's simulators. Runs in an environment of its own, where fedpatch is not installed."""
