"""Selection of devices and of those that count: sampling, the quorum rule, offences.

Pure, and without knowledge of rounds: functions of numbers and names. The round that applies them is in `rounds`.
"""
