"""Whole fleets in one process: the paper's experiments, studies of one's own, and the round policy under a virtual clock."""
