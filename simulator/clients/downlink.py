"""How the global model comes to the clients: what they read of it, and the bytes that it takes each of them.

In an encoding of differences a client that holds an earlier version takes the steps from there, unless the whole model is
shorter or the steps are more than a work request names; that is what devices do (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.negotiation import EVERYWHERE, whole_model_encoding
from coordinator.quantised_step import quantised_step, step_seed
from coordinator.strategies import ServerState
from shared.compression import pack, unpack
from shared.errors import UsageError
from shared.messages import MAX_DELTAS, is_delta
from shared.tensors import Array, Schema


class Downlink:
    """One for a simulation; `client` is held against versions, which are numbers of completed rounds."""

    def __init__(self, encoding: str, travelling: Schema, clients: int, seed: int) -> None:
        self._encoding, self._schema, self._seed = encoding, travelling, seed
        self._held = [-1] * clients
        self._steps: list[int] = []  # bytes of the steps to the last versions, the present one's last
        self._whole: int | None = None
        self._version = 0

    def follow(self, before: ServerState, after: ServerState) -> ServerState:
        """What the clients can follow of the server's step: all of it, or what the encoding carries of it."""
        if not is_delta(self._encoding):
            return after
        seed = step_seed(self._seed, after.round)
        followed, packed = quantised_step(before, after, self._schema, self._encoding, seed)
        self._steps = [*self._steps, len(packed.blob)][-MAX_DELTAS:]
        return followed

    def read(self, state: ServerState) -> dict[str, Array]:
        """Tensors of the state as clients read them; to be called for each version, before `take`."""
        self._version = state.round
        if self._encoding == "fp32" and self._whole is not None:
            return state.tensors  # exact, and as long as ever
        encoding = whole_model_encoding(self._encoding)
        packed = pack(state.tensors, self._schema, {"round": state.round + 1}, encoding)
        self._whole = len(packed.blob)
        if encoding in (EVERYWHERE, "fp32"):
            return state.tensors
        return unpack(packed.blob, encoding=encoding, raw_bytes=packed.raw_bytes, schema=self._schema)[1]

    def take(self, clients: Sequence[int]) -> int:
        """Bytes that it takes these clients together to come to the version that was read last."""
        total = 0
        for client in clients:
            total += self._bytes_from(self._held[client])
            self._held[client] = self._version
        return total

    def _bytes_from(self, held: int) -> int:
        assert self._whole is not None
        behind = self._version - held
        if held < 0 or not is_delta(self._encoding) or behind > len(self._steps):
            return self._whole
        return min(self._whole, sum(self._steps[len(self._steps) - behind :]))

    def state(self) -> dict[str, Any]:
        """Plain data, to go on from later."""
        return {"held": self._held, "steps": self._steps, "whole": self._whole}

    def restore(self, before: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Raises UsageError where it is none of as many clients."""
        held, steps = before.get("held"), before.get("steps")
        if not isinstance(held, list) or not isinstance(steps, list) or len(held) != len(self._held):
            raise UsageError("what was saved does not say which model each client holds; delete it to begin anew")
        self._held, self._steps, self._whole = list(held), list(steps), before.get("whole")
