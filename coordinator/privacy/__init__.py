"""Differential privacy of a run on the disk: the noise of the open round, the account of releases, the noised aggregate.

The terms and the arithmetic are in `aggregation`, the accountant is in `fedpatch.shared.privacy`.
"""
