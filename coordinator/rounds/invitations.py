"""What each participant of a round is asked for: an update in an encoding that it knows, from a model that it can come to.

A device that is known to hold an older version of the global model is told the rest of the way from there, one of which that
is not known all of it: the request is to stay short in a large fleet. Whoever knows no encoding of differences takes the
whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.effects import Effect, Republish
from coordinator.fleet import Fleet
from coordinator.ledger import Ledger
from coordinator.repairs import Repairs
from coordinator.run_spec import RunSpec
from shared.messages import COORDINATOR_FEATURES, INDEPENDENT_FEATURE, Manifest, ModelDelta, Need, WorkRequest, is_delta


def measures_independent(every: int, round: int) -> bool:
    """Whether devices measure in this round what learning alone would have given; never in the first."""
    return every > 0 and round > 1 and round % every == 0


class Asking:
    """Of one round, whose model lies on the broker since `now`. `deltas` lead to it, the oldest first.

    A round that was open before goes on with the encodings that its `ledger` knows: what devices have made is in those.
    """

    def __init__(
        self,
        spec: RunSpec,
        fleet: Fleet,
        ledger: Ledger,
        model: Manifest,
        deltas: Sequence[ModelDelta] = (),
        now: float = 0.0,
    ) -> None:
        self.model = model
        self._spec = spec
        self._fleet = fleet
        self._measures = measures_independent(spec.independent_every, ledger.round)
        # By the version that a device holds: what is left of the way from there, and its bytes. "": nobody knows which.
        self._ways = {"": tuple(deltas), model.digest: ()}
        self._ways |= {delta.base: tuple(deltas[at:]) for at, delta in enumerate(deltas)}
        self._held = {device: fleet.version(device) for device in ledger.invited}
        self._repairs = {one.digest: Repairs(one, now) for one in (model, *(delta.manifest for delta in deltas))}
        if ledger.base:
            usual = ledger.encoding or spec.encoding
            self._encodings = {device: ledger.negotiated.get(device, usual) for device in ledger.invited}
        else:
            self._encodings = {device: fleet.encoding(device) for device in ledger.invited}

    def noted(self, ledger: Ledger) -> Ledger:
        """The ledger, with all that is to outlive this process."""
        usual = ledger.encoding or self._spec.encoding
        others = {device: encoding for device, encoding in self._encodings.items() if encoding != usual}
        return replace(ledger, base=self.model.digest, encoding=usual, negotiated=others)

    def request(self, device: str, remaining_s: float) -> WorkRequest:
        """What a participant is asked for, with so much time left."""
        spec = self._spec
        return WorkRequest(
            schema=spec.schema,
            private=spec.private,
            plan=spec.plan,
            model=self.model,
            encoding=self.encoding(device),
            chunk_bytes=spec.chunk_bytes,
            deadline_s=remaining_s,
            deltas=self._ways.get(self._held[device], ()) if is_delta(self._encodings[device]) else (),
            features=COORDINATOR_FEATURES,
            measure_independent=self._measures and self._fleet.knows(device, INDEPENDENT_FEATURE),
        )

    def encoding(self, device: str) -> str:
        """In which a participant was asked for its update."""
        return self._encodings[device]

    def restarted(self, device: str) -> None:
        """It has nothing of this round any more, and may be of another version now."""
        self._encodings[device] = self._fleet.encoding(device)

    def came_to_it(self, device: str) -> None:
        """The device trains on the model: the next round can go on from there."""
        if is_delta(self._encodings[device]):
            self._fleet.has_version(device, self.model.digest)

    def size_bytes(self, device: str) -> int:
        """What a participant has to download; where nobody knows which version it held before the round, the whole model."""
        held = self._held[device]
        if not held or held not in self._ways or not is_delta(self._encodings[device]):
            return self.model.size_bytes
        return sum(delta.manifest.size_bytes for delta in self._ways[held])

    def wanted(self, need: Need, now: float, waiting: int) -> list[Effect]:
        """What to publish once more for a device that misses chunks, while so many have not come to the model."""
        repairs = self._repairs.get(need.digest)
        indices = repairs.wanted(need, now, waiting) if repairs is not None else ()
        return [Republish(need.digest, indices)] if indices else []
