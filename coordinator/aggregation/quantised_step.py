"""The quantised step of a round, by which the global model moves in a run with a delta encoding.

With a delta encoding the coordinator and its devices hold bit-identical global models. So the step of a strategy is packed as
it will travel, and the new model is the old one plus the unpacked step. Checkpoints, exports, the bases of updates and a
resume use the same bits. With an encoding that has feedback (shared.tensors.encoding_rules.FEEDBACK) the rounding error is
added to the next step (error feedback on the server: Tang et al. 2019, "DoubleSqueeze", Algorithm 1).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.tensors.encodings import NO_SEED
from fedpatch.shared.tensors.error_feedback import is_residual, step_with_feedback
from fedpatch.shared.tensors.packing import Packed

_SEED_BYTES = 6


def quantised_step(
    before: ServerState, after: ServerState, schema: Schema, encoding: str, seed: int, subset_seed: bytes = NO_SEED
) -> tuple[ServerState, Packed]:
    """Quantise the step from one server state to the next.

    Args:
        before: The state before the round.
        after: The state that the strategy made. Its residuals (`NAME:residual` in `server`, of the shape of NAME) are left from
            the last step, and are added to this step.
        schema: Names, shapes and dtypes of the tensors that travel.
        encoding: A delta encoding.
        seed: Seed of the rounding (`step_seed`).
        subset_seed: Seed of the round's public subset (shared.tensors.subset.round_seed).

    Returns:
        The state after the quantised step, and the packed step. Equal arguments give equal bits; no argument is changed.

    Raises:
        Exception: As shared.tensors.packing.pack does.
    """
    meta, left = {"round": after.round + 1}, after.server
    step = step_with_feedback(
        after.tensors, schema, meta, encoding, base=before.tensors, seed=seed, residual=left, subset_seed=subset_seed
    )
    return replace(after, tensors=step.tensors, server=_others(after.server) | step.residual), step.packed


def without_residuals(state: ServerState) -> ServerState:
    """Return the state without the residuals of an earlier encoding, for a run whose encoding has no feedback."""
    return replace(state, server=_others(state.server))


def step_seed(run_seed: int, round_number: int) -> int:
    """Return the seed of the rounding in a round's step: the same after a crash, another one in each round."""
    digest = hashlib.sha256(f"step {run_seed} {round_number}".encode()).digest()
    return int.from_bytes(digest[:_SEED_BYTES])


def _others(server: Tensors) -> dict[str, Array]:
    return {name: array for name, array in server.items() if not is_residual(name)}
