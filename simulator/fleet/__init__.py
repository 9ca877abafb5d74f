"""The coordinator's round policy on a simulated fleet under a virtual clock; nothing is trained."""
