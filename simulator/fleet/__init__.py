"""The coordinator's round policy on a simulated fleet under a virtual clock.

The fleet trains only if its terms name a task; simulations of the paper and of studies are in `experiment`.
"""
