"""What a device says of itself: local metrics, vitals, times of its rounds.

It reads and never decides.
"""
