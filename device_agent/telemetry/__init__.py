"""The device's reports about itself: local metrics, vitals, times of its rounds.

This package only reads; it decides nothing.
"""
