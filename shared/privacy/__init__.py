"""Accounting of differential privacy: the privacy loss of rounds with Gaussian or Skellam noise.

Pure functions of numbers, for coordinator, device agent and simulator. The agent's process uses them too, so they need neither
NumPy nor torch.
"""
