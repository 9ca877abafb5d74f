"""The device's reports about itself: local metrics, vitals, times of its rounds.

This room reads and never decides.
"""
