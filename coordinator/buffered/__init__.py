"""Buffered rounds: work that a round does not wait for, its age in versions of the model, and shares of weights by speed.

Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (FedBuff).
"""
