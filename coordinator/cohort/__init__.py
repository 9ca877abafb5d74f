"""The devices that are selected, and the devices that count: sampling, the quorum rule, offences.

Pure functions of numbers and names, independent of rounds. `rounds` applies them.
"""
