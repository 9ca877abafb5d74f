"""A run and its rounds as state machines: events in, effects out.

Pure: no network, no clock, no thread, no disk. `runtime` feeds the events and performs the effects.
"""
