"""The agent's process: start, event loop, effects, supervision of the training process.

Neither numpy nor torch is imported here.
"""
