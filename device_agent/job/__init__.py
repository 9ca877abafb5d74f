"""One work request as a state machine: events in, effects out; and the messages between agent and training process.

Pure: no network, no clock, no thread, no disk.
"""
