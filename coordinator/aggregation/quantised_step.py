"""The quantised step of a round, by which the global model moves in a run with a delta encoding.

With a delta encoding the coordinator and its devices hold bit-identical global models. So the step of a strategy is packed as
it will travel, and the new model is the old one plus the unpacked step. Checkpoints, exports, the bases of updates and a
resume use the same bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.tensors.packing import Packed, pack, unpack

_SEED_BYTES = 6


def quantised_step(
    before: ServerState, after: ServerState, schema: Schema, encoding: str, seed: int
) -> tuple[ServerState, Packed]:
    """Quantise the step from one server state to the next.

    Args:
        before: The state before the round.
        after: The state that the strategy made.
        schema: Names, shapes and dtypes of the tensors that travel.
        encoding: A delta encoding.
        seed: Seed of the rounding (`step_seed`).

    Returns:
        The state after the quantised step, and the packed step. Equal arguments give equal bits; no argument is changed.

    Raises:
        Exception: As shared.tensors.packing.pack does.
    """
    base = before.tensors
    packed = pack(after.tensors, schema, {"round": after.round + 1}, encoding, base=base, seed=seed)
    _, decoded = unpack(packed.blob, encoding=encoding, raw_bytes=packed.raw_bytes, schema=schema, base=base)
    return replace(after, tensors=decoded), packed


def step_seed(run_seed: int, round_number: int) -> int:
    """Return the seed of the rounding in a round's step: the same after a crash, another one in each round."""
    digest = hashlib.sha256(f"step {run_seed} {round_number}".encode()).digest()
    return int.from_bytes(digest[:_SEED_BYTES])
