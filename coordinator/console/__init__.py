"""The web console: one live page of a fleet and its runs, and actions of the operator where they are enabled.

It reads the registry and the status messages of the coordinator, in a process of its own, so that no browser delays a round.
"""
