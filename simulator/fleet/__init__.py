"""The coordinator's round policy on a simulated fleet under a virtual clock.

Nothing is trained here; simulations that train are in `experiment`.
"""
