"""Masked groups on the coordinator: drawing them, one state machine a group, the recovery of secrets.

Pure: no network, no clock, no thread, no disk. `rounds` feeds the messages and performs the effects.
"""
