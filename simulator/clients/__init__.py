"""The clients of a simulation: their data, patches, minibatches and simulated transport.

`learners` trains them.
"""
