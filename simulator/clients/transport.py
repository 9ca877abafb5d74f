"""Both ways of a simulated network: what clients and coordinator read of what the other sent, and how many bytes it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from coordinator.strategies import ServerState, zeros
from shared.compression import pack
from shared.errors import UsageError
from shared.tensors import Array, Schema, Tensors
from simulator.downlink import Downlink
from simulator.study import EXACT, Study
from simulator.uplink import Uplink, report_of


class Wire:
    """Carries nothing, and counts nothing, where `travelling` is empty: independent clients."""

    def __init__(self, study: Study, travelling: Schema) -> None:
        some = len(travelling) > 0
        self._down = Downlink(study.encoding, travelling, study.clients, study.seed) if some else None
        # What is exact needs no packing: every update is as long as any other.
        self.uplink = Uplink(study.encoding, travelling, study.clients) if some and study.encoding != EXACT else None
        meta = asdict(report_of(0, 1000, 100, 1.0))
        self._exact_bytes = len(pack(zeros(travelling), travelling, meta, EXACT).blob) if some else 0

    def follow(self, before: ServerState, after: ServerState) -> ServerState:
        """What clients can follow of the server's step."""
        return self._down.follow(before, after) if self._down else after

    def read(self, state: ServerState) -> dict[str, Array]:
        """Tensors of the global model as clients read them."""
        return self._down.read(state) if self._down else state.tensors

    def bytes_down(self, clients: Sequence[int]) -> int:
        """What it took these clients together to come to the model that was read last."""
        return self._down.take(clients) if self._down else 0

    def bytes_up(self, clients: Sequence[int]) -> int:
        """Of these clients' last updates together."""
        return self.uplink.bytes_of(clients) if self.uplink else self._exact_bytes * len(clients)

    def state(self) -> dict[str, Any]:
        """Plain data, to go on from later; the residuals are apart."""
        return self._down.state() if self._down else {}

    def residuals(self) -> dict[str, Array]:
        """What encoding left of every client's updates, clients first; they go on changing."""
        return {name: block.numpy() for name, block in self.uplink.residuals.items()} if self.uplink else {}

    def restore(self, before: Mapping[str, Any], residuals: Tensors) -> None:
        """Go on where `state` and `residuals` were taken. Raises UsageError, SchemaMismatch where they do not fit."""
        if self._down:
            self._down.restore(before)
        if self.uplink:
            self.uplink.restore(residuals)
        elif residuals:
            raise UsageError(
                "what was saved has residuals, which this encoding leaves none of; delete it to begin anew"
            )
