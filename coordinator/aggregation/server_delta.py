"""The server's model deltas: the quantised step of each round, and chains of steps from older versions of the global model.

With a delta encoding the coordinator and its devices hold bit-identical global models. So the step of a strategy is packed as
it will travel, and the new model is the old one plus the unpacked step. Checkpoints, exports, the bases of updates and a
resume use the same bits. With an encoding that has feedback (shared.tensors.encodings.FEEDBACK) the rounding error is added to
the next step (error feedback on the server: Tang et al. 2019, "DoubleSqueeze", Algorithm 1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.tensors.encodings import NO_SEED
from fedpatch.shared.tensors.error_feedback import is_residual, step_with_feedback
from fedpatch.shared.tensors.packing import Packed
from fedpatch.shared.wire.messages import MAX_DELTAS

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


@dataclass(frozen=True)
class ServerDelta:
    """The packed step of one round's global model.

    Attributes:
        round: The round that made the step.
        base: The version that the step starts from: the digest of that whole model's manifest.
        before: Digest of the tensors before the step (shared.tensors.arrays.values_digest).
        content: Digest of the tensors after it.
        packed: The step as it travels.
    """

    round: int
    base: str
    before: str
    content: str
    packed: Packed


def chain(steps: Iterable[ServerDelta], content: str, most_bytes: int) -> tuple[ServerDelta, ...]:
    """Return the chain of steps that leads to a model, the oldest first; each starts where the previous step ends.

    If several steps lead to the same model, the latest round's step is taken. So rolled-back rounds are left out.

    Args:
        steps: The steps that are stored.
        content: Digest of the tensors at the end of the chain.
        most_bytes: The greatest sum of the steps' sizes. A device that needs more, or more than MAX_DELTAS steps, downloads
            the whole model.
    """
    found: list[ServerDelta] = []
    left_bytes = most_bytes
    for step in sorted(steps, key=lambda delta: delta.round, reverse=True):
        if step.content != content or (found and step.round >= found[-1].round):
            continue
        left_bytes -= len(step.packed.blob)
        if left_bytes < 0 or len(found) == MAX_DELTAS:
            break
        found.append(step)
        content = step.before
    return tuple(reversed(found))
