"""The simulated network, down and up: encodes and decodes the tensors that travel, and counts their bytes.

Each client's update as a device would send it: encoded, decoded again, and with what rounding took kept for the next one.

How the global model comes to the clients: what they read of it, and the bytes that it takes each of them.

In an encoding of differences a client that holds an earlier version takes the steps from there, unless the whole model is
shorter or the steps are more than a work request names; that is what devices do (docs/reference/protocol.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from fedpatch.coordinator.aggregation.server_delta import quantised_step, step_seed
from fedpatch.coordinator.aggregation.strategies import ServerState, zeros
from fedpatch.coordinator.rounds.run_spec import EVERYWHERE, whole_model_encoding
from fedpatch.device_agent.state.residual_store import as_kept
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.tensors.encodings import FEEDBACK
from fedpatch.shared.tensors.error_feedback import residual_name, step_with_feedback
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.tensors.subset import round_seed
from fedpatch.shared.wire.messages import MAX_DELTAS, UpdateReport, is_delta
from fedpatch.simulator.clients.masked_uplink import MaskedUplink
from fedpatch.simulator.clients.patches import check_blocks, shared_zeros
from fedpatch.simulator.spec.study import EXACT, Study, client_id


class Uplink:
    """State of all clients from their earlier updates: `residuals[name]` has shape (clients, ...), `sizes` is in bytes.

    Both lie in memory that worker processes share; a page without a write takes none. Who has sent nothing yet has a
    size of 0.
    """

    def __init__(self, encoding: str, travelling: Schema, clients: int, seed: int) -> None:
        self.encoding, self.travelling, self._seed = encoding, travelling, seed
        self.round = shared_zeros((1,), torch.int64)
        trained = [spec for spec in travelling.specs if spec.trainable and encoding in FEEDBACK]
        self.residuals = {
            residual_name(spec.name): shared_zeros((clients, *spec.shape), getattr(torch, spec.dtype))
            for spec in trained
        }
        self.sizes = shared_zeros((clients,), torch.int64)

    def send(self, client: int, tensors: Tensors, base: Tensors, report: UpdateReport, seed: int) -> dict[str, Array]:
        """Encode and decode a client's update; its residual and its size are kept.

        Args:
            client: Number of the client.
            tensors: The trained tensors by name.
            base: The tensors that training began with.
            report: Report of the training.
            seed: Seed of the rounding.

        Returns:
            The tensors as the coordinator reads them.
        """
        residual = {name: block[client].numpy() for name, block in self.residuals.items()}
        step = step_with_feedback(
            tensors,
            self.travelling,
            asdict(report),
            self.encoding,
            base=base,
            seed=seed,
            residual=residual,
            subset_seed=round_seed(self._seed, int(self.round[0])),
        )
        if step.residual:
            for name, values in as_kept(step.residual, self.travelling, seed).items():
                residual[name][...] = values
        self.sizes[client] = len(step.packed.blob)
        return step.tensors

    def bytes_of(self, clients: Sequence[int]) -> int:
        """Bytes of the last updates of these clients together."""
        return int(self.sizes[list(clients)].sum())

    def restore(self, residuals: Tensors) -> None:
        """Take residuals of earlier. Raises SchemaMismatch unless they are those of as many clients of this model."""
        check_blocks("residuals", self.residuals, residuals)
        for name, block in self.residuals.items():
            block.copy_(torch.from_numpy(residuals[name]))


def report_of(client: int, num_examples: int, steps: int, loss: float) -> UpdateReport:
    """As long as a device's; what a simulation does not know (digest, accuracies, seconds) is made up."""
    digest = hashlib.sha256(client_id(client).encode()).hexdigest()
    return UpdateReport(digest, num_examples, steps, loss, 0.9, 0.9, 0.1, 0.1)


class Downlink:
    """One for a simulation; `client` is held against versions, which are numbers of completed rounds."""

    def __init__(self, encoding: str, travelling: Schema, clients: int, seed: int) -> None:
        self._encoding, self._schema, self._seed = encoding, travelling, seed
        self._held = [-1] * clients
        self._steps: list[int] = []  # bytes of the steps to the last versions, the present one's last
        self._whole: int | None = None
        self._version = 0

    def follow(self, before: ServerState, after: ServerState) -> ServerState:
        """Return the server's step as clients receive it: whole, or the part that the encoding carries."""
        if not is_delta(self._encoding):
            return after
        seed = step_seed(self._seed, after.round)
        followed, packed = quantised_step(
            before, after, self._schema, self._encoding, seed, round_seed(self._seed, after.round)
        )
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


class SimulatedTransport:
    """Carries nothing, and counts nothing, where `travelling` is empty: independent clients.

    In a masked study updates go by `masked`.
    """

    def __init__(self, study: Study, travelling: Schema, masked: MaskedUplink | None = None) -> None:
        self.masked = masked
        some = len(travelling) > 0
        self._down = Downlink(study.encoding, travelling, study.clients, study.seed) if some else None
        # What is exact needs no packing: every update is as long as any other.
        self.uplink = (
            Uplink(study.encoding, travelling, study.clients, study.seed)
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
        if self.uplink:
            self.uplink.round[0] = state.round + 1
        return self._down.read(state) if self._down else state.tensors

    def bytes_down(self, clients: Sequence[int]) -> int:
        """Return the bytes that these clients together downloaded for the model that was read last."""
        return self._down.take(clients) if self._down else 0

    def bytes_up(self, clients: Sequence[int]) -> int:
        """Return the bytes of these clients' last updates together."""
        if self.masked:
            return self.masked.update_bytes * len(clients)
        return self.uplink.bytes_of(clients) if self.uplink else self._exact_bytes * len(clients)

    def state(self) -> dict[str, Any]:
        """Plain data, to go on from later; the residuals are apart."""
        masked = {"masked": self.masked.state()} if self.masked else {}
        return {**self._down.state(), **masked} if self._down else {}

    def residuals(self) -> dict[str, Array]:
        """Residuals of every client's updates, clients first; later rounds change them in place."""
        up = self.masked or self.uplink
        return {name: block.numpy() for name, block in up.residuals.items()} if up else {}

    def restore(self, before: Mapping[str, Any], residuals: Tensors) -> None:
        """Go on where `state` and `residuals` were taken. Raises UsageError, SchemaMismatch where they do not fit."""
        if self._down:
            self._down.restore(before)
        if self.masked:
            self.masked.restore(before.get("masked", {}), residuals)
        elif self.uplink:
            self.uplink.restore(residuals)
        elif residuals:
            raise UsageError(
                "what was saved has residuals, which this encoding leaves none of; delete it to begin anew"
            )
