"""Output of a run for people and Prometheus: metrics, status messages, the live view.

It reads the state of a run and changes none of it.
"""
