"""The server's step as devices can follow it: to what an encoding carries.

A run whose encoding carries differences has as its global model exactly what its devices hold. So the step that a
strategy makes is packed as it will travel, and the model is what comes out when that is unpacked; checkpoints, exports, the
bases of updates and a resume all speak of the same bits. Where the encoding has feedback (shared.encodings.FEEDBACK), what was
left out is added to the next step (error feedback on the server: Tang et al. 2019, "DoubleSqueeze", Algorithm 1).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from coordinator.strategies import ServerState
from shared.compression import Packed
from shared.feedback import is_residual, step_with_feedback
from shared.tensors import Array, Schema, Tensors

_SEED_BYTES = 6


def quantised_step(
    before: ServerState, after: ServerState, schema: Schema, encoding: str, seed: int
) -> tuple[ServerState, Packed]:
    """The state that the step from `before` to `after` leads to for whoever takes it in `encoding`, and the step as it travels.

    `schema` is that of what travels, `seed` drives the rounding (`step_seed`). Of `after.server` only the residuals change:
    `NAME:residual`, of the shape of NAME, which the step before left there and this one uses up. Neither state is changed
    in place; equal arguments give equal bits. Raises as shared.compression.pack does.
    """
    meta, left = {"round": after.round + 1}, after.server
    step = step_with_feedback(after.tensors, schema, meta, encoding, base=before.tensors, seed=seed, residual=left)
    return replace(after, tensors=step.tensors, server=_others(after.server) | step.residual), step.packed


def without_residuals(state: ServerState) -> ServerState:
    """The state in a run whose encoding leaves nothing out: what an encoding before it left behind is dropped."""
    return replace(state, server=_others(state.server))


def step_seed(run_seed: int, round_number: int) -> int:
    """Of the rounding in the step that round `round_number` makes: the same after any crash, another in each round."""
    digest = hashlib.sha256(f"step {run_seed} {round_number}".encode()).digest()
    return int.from_bytes(digest[:_SEED_BYTES], "big")


def _others(server: Tensors) -> dict[str, Array]:
    return {name: array for name, array in server.items() if not is_residual(name)}
