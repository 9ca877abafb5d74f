"""The server's step as devices can follow it: to what an encoding carries.

A run whose encoding carries differences has as its global model exactly what its devices hold. So the step that a
strategy makes is packed as it will travel, and the model is what comes out when that is unpacked; checkpoints, exports, the
bases of updates and a resume all speak of the same bits. Where the encoding has feedback (shared.tensors.encodings.FEEDBACK),
what was left out is added to the next step (error feedback on the server: Tang et al. 2019, "DoubleSqueeze", Algorithm 1).

The steps that lead from older versions of the global model to the present one, and which of them are worth offering.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedpatch.coordinator.aggregation.strategies import ServerState
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.tensors.error_feedback import is_residual, step_with_feedback
from fedpatch.shared.tensors.packing import Packed
from fedpatch.shared.wire.messages import MAX_DELTAS

_SEED_BYTES = 6


def quantised_step(
    before: ServerState, after: ServerState, schema: Schema, encoding: str, seed: int
) -> tuple[ServerState, Packed]:
    """The state that the step from `before` to `after` leads to for whoever takes it in `encoding`, and the step as it travels.

    `schema` is that of what travels, `seed` drives the rounding (`step_seed`). Of `after.server` only the residuals change:
    `NAME:residual`, of the shape of NAME, which the step before left there and this one uses up. Neither state is changed
    in place; equal arguments give equal bits. Raises as shared.tensors.packing.pack does.
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


@dataclass(frozen=True)
class ServerDelta:
    """What round `round` did to the global model, as it travels.

    It begins from the version `base`, whose tensors have the digest `before`, and leads to tensors of the digest `content`
    (shared.tensors.arrays.values_digest). A version is named by the digest of its whole model's manifest.
    """

    round: int
    base: str
    before: str
    content: str
    packed: Packed


def chain(steps: Iterable[ServerDelta], content: str, most_bytes: int) -> tuple[ServerDelta, ...]:
    """The chain of `steps` that leads to `content`, the oldest first: each goes on where the one before it ends.

    At most MAX_DELTAS of them, which together are no larger than `most_bytes`: whoever needs more takes the whole model.
    Of steps with the same end the one of the latest round is taken, so that a history that was given up leads nowhere.
    """
    found: list[ServerDelta] = []
    left_bytes = most_bytes
    for step in sorted(steps, key=lambda one: one.round, reverse=True):
        if step.content != content or (found and step.round >= found[-1].round):
            continue
        left_bytes -= len(step.packed.blob)
        if left_bytes < 0 or len(found) == MAX_DELTAS:
            break
        found.append(step)
        content = step.before
    return tuple(reversed(found))
