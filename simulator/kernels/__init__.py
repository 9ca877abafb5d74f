"""Hand-written forward and backward passes, for many small models at a time.

This package has no clients or rounds; `learners` use it for training.
"""
