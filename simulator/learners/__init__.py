"""Training of a cohort: one client after another, fused kernels, stacked tensors, worker processes.

The data of clients come from `clients`, the aggregate from `fedpatch.coordinator.aggregation`.
"""
