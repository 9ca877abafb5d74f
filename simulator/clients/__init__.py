"""The clients of a simulation: their data, patches, minibatches and simulated transport.

Training them is the work of `learners`.
"""
