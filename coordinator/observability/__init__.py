"""What people and Prometheus see of a run: metrics, status messages, the live view.

It reads the state of a run and changes none of it.
"""
