"""A device's part in a masked group, as a state machine without IO.

Pure: no network, clock, thread or disk; random bytes are an argument. Neither numpy nor `cryptography` is imported here.
"""
