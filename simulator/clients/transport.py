"""The simulated network, down and up: encodes and decodes the tensors that travel, and counts their bytes.

Up: each client's update as a device would send it, encoded and decoded again.

Down: the global model as clients read it, and the bytes of each client's download.

With an encoding of differences, a client that holds an earlier version downloads the steps from there, as devices do
(docs/reference/protocol.md). It downloads the whole model if that is shorter, or if a work request cannot name so many steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from fedpatch.coordinator.aggregation.quantised_step import quantised_step, step_seed
from fedpatch.coordinator.aggregation.server_state import ServerState, zeros
from fedpatch.coordinator.rounds.encoding_for_device import EVERYWHERE, whole_model_encoding
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire.messages import MAX_DELTAS, UpdateReport, is_delta
from fedpatch.simulator.clients.masked_uplink import MaskedUplink
from fedpatch.simulator.clients.patches import shared_zeros
from fedpatch.simulator.spec.study import EXACT, Study, client_id


class Uplink:
    """The bytes of each client's last update, in `sizes`, which worker processes share; 0 for none yet."""

    def __init__(self, encoding: str, travelling: Schema, clients: int) -> None:
        self.encoding, self.travelling = encoding, travelling
        self.sizes = shared_zeros((clients,), torch.int64)

    def send(self, client: int, tensors: Tensors, base: Tensors, report: UpdateReport, seed: int) -> dict[str, Array]:
        """Encode and decode a client's update; keep its size.

        Args:
            client: Number of the client.
            tensors: The trained tensors by name.
            base: The tensors that training began with.
            seed: Seed of the rounding.

        Returns:
            The tensors as the coordinator reads them.
        """
        packed = pack(tensors, self.travelling, asdict(report), self.encoding, base=base, seed=seed)
        self.sizes[client] = len(packed.blob)
        return unpack(
            packed.blob, encoding=self.encoding, raw_bytes=packed.raw_bytes, schema=self.travelling, base=base
        )[1]

    def bytes_of(self, clients: Sequence[int]) -> int:
        """Return the total bytes of the last updates of these clients."""
        return int(self.sizes[list(clients)].sum())


def report_of(client: int, num_examples: int, steps: int, loss: float) -> UpdateReport:
    """Return a report as long as a device's; values that a simulation lacks (digest, accuracies, seconds) are made up."""
    digest = hashlib.sha256(client_id(client).encode()).hexdigest()
    return UpdateReport(digest, num_examples, steps, loss, 0.9, 0.9, 0.1, 0.1)


class Downlink:
    """The downlink of all clients: the version that each client holds. A version is a number of completed rounds."""

    def __init__(self, encoding: str, travelling: Schema, clients: int, seed: int) -> None:
        self._encoding, self._schema, self._seed = encoding, travelling, seed
        self._held = [-1] * clients
        self._steps: list[int] = []  # bytes of the steps to the last versions, in order
        self._whole: int | None = None
        self._version = 0

    def follow(self, before: ServerState, after: ServerState) -> ServerState:
        """Return the server's step as clients receive it: whole, or the part that the encoding carries."""
        if not is_delta(self._encoding):
            return after
        seed = step_seed(self._seed, after.round)
        followed, packed = quantised_step(before, after, self._schema, self._encoding, seed)
        self._steps = [*self._steps, len(packed.blob)][-MAX_DELTAS:]
        return followed

    def read(self, state: ServerState) -> dict[str, Array]:
        """Return the tensors of the state as clients read them. Call it for each version, before `take`."""
        self._version = state.round
        if self._encoding == "fp32" and self._whole is not None:
            return state.tensors  # exact, and always of the same length
        encoding = whole_model_encoding(self._encoding)
        packed = pack(state.tensors, self._schema, {"round": state.round + 1}, encoding)
        self._whole = len(packed.blob)
        if encoding in (EVERYWHERE, "fp32"):
            return state.tensors
        return unpack(packed.blob, encoding=encoding, raw_bytes=packed.raw_bytes, schema=self._schema)[1]

    def take(self, clients: Sequence[int]) -> int:
        """Return the total bytes that these clients download to get the version that was read last."""
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
        """Return plain data to resume from."""
        return {"held": self._held, "steps": self._steps, "whole": self._whole}

    def restore(self, before: Mapping[str, Any]) -> None:
        """Resume from `state`. Raises UsageError if it is not the state of as many clients."""
        held, steps = before.get("held"), before.get("steps")
        if not isinstance(held, list) or not isinstance(steps, list) or len(held) != len(self._held):
            raise UsageError("what was saved does not say which model each client holds; delete it to begin anew")
        self._held, self._steps, self._whole = list(held), list(steps), before.get("whole")


class SimulatedTransport:
    """Downlink and uplink of a study. Without `travelling` tensors (independent clients) it carries and counts nothing.

    In a masked study `masked` carries the updates.
    """

    def __init__(self, study: Study, travelling: Schema, masked: MaskedUplink | None = None) -> None:
        self.masked = masked
        some = len(travelling) > 0
        self._down = Downlink(study.encoding, travelling, study.clients, study.seed) if some else None
        # Exact updates need no packing: all have the same length.
        self.uplink = (
            Uplink(study.encoding, travelling, study.clients)
            if some and study.encoding != EXACT and not masked
            else None
        )
        meta = asdict(report_of(0, 1000, 100, 1.0))
        self._exact_bytes = len(pack(zeros(travelling), travelling, meta, EXACT).blob) if some else 0

    def follow(self, before: ServerState, after: ServerState) -> ServerState:
        """Return the part of the server's step that clients receive."""
        return self._down.follow(before, after) if self._down else after

    def read(self, state: ServerState) -> dict[str, Array]:
        """Tensors of the global model as clients read them."""
        return self._down.read(state) if self._down else state.tensors

    def bytes_down(self, clients: Sequence[int]) -> int:
        """Return the total bytes that these clients download for the model that was read last."""
        return self._down.take(clients) if self._down else 0

    def bytes_up(self, clients: Sequence[int]) -> int:
        """Return the total bytes of these clients' last updates."""
        if self.masked:
            return self.masked.update_bytes * len(clients)
        return self.uplink.bytes_of(clients) if self.uplink else self._exact_bytes * len(clients)

    def state(self) -> dict[str, Any]:
        """Return plain data to resume from."""
        masked = {"masked": self.masked.state()} if self.masked else {}
        return {**self._down.state(), **masked} if self._down else {}

    def restore(self, before: Mapping[str, Any]) -> None:
        """Resume from `state`. Raises UsageError if it does not fit."""
        if self._down:
            self._down.restore(before)
        if self.masked:
            self.masked.restore(before.get("masked", {}))
