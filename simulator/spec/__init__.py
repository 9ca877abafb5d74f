"""The description of a simulation and its outcome, as plain data; the numbers that the paper published.

Nothing is computed here.
"""
