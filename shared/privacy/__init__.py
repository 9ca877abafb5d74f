"""Accounting of differential privacy: the privacy loss of rounds with Gaussian or Skellam noise.

Pure: mathematics of numbers alone, for coordinator, device agent and simulator. The agent's process computes with it too, so it
needs neither NumPy nor torch.
"""
