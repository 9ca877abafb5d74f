"""What each participant of a round is asked for: an update in an encoding that it knows, from a model that it can come to.

A device that is known to hold an older version of the global model is told the rest of the way from there, one of which that
is not known all of it: the request is to stay short in a large fleet. Whoever knows no encoding of differences takes the
whole model.

Which chunks of the global model are published once more, for devices that miss them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.participant_transitions import RoundJournal
from fedpatch.coordinator.rounds.run_effects import Effect, ResendChunks
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunked_transfer import Bitmap
from fedpatch.shared.wire.messages import (
    COORDINATOR_FEATURES,
    INDEPENDENT_FEATURE,
    Manifest,
    ModelDelta,
    Need,
    WorkRequest,
    is_delta,
)

# Shorter than the pause after which a device asks again (shared.wire.chunked_transfer.Download).
REPUBLISH_S = 0.8
# What a broker is taken to give to all its subscribers together in a second. Who asks while the first sending is still on its
# way to others must not make the broker send it once more to everybody: with a thousand devices that would never end.
FAN_OUT_BYTES_S = 50e6


class ChunkResender:
    """Whoever asks gets what all subscribers get: devices that miss the same chunk are served at once.

    The model was published at `now`.
    """

    def __init__(self, model: Manifest, now: float = -math.inf) -> None:
        self._model = model
        # Where the model is small or devices are few, the first who asks is served at once: a broker may retain nothing.
        self._published_at = now - REPUBLISH_S
        self._sent_at: dict[int, float] = {}

    def due(self, need: Need, now: float, waiting: int = 1) -> tuple[int, ...]:
        """Chunks to publish now; none for another model, for a bitmap that does not fit, or so soon after the last time.

        `waiting` devices do not have the model yet: for so many the last sending is under way.
        """
        if need.digest != self._model.digest:
            return ()
        try:
            missing = Bitmap.from_bytes(self._model.chunk_count, need.missing)
        except WireError:
            return ()
        pause_s = max(REPUBLISH_S, waiting * self._model.size_bytes / FAN_OUT_BYTES_S)
        wanted = tuple(i for i in missing if now >= self._sent_at.get(i, self._published_at) + pause_s)
        self._sent_at.update(dict.fromkeys(wanted, now))
        return wanted


def measures_independent(every: int, round: int) -> bool:
    """Whether devices measure in this round what learning alone would have given; never in the first."""
    return every > 0 and round > 1 and round % every == 0


class Invitations:
    """Of one round, whose model lies on the broker since `now`. `deltas` lead to it, the oldest first.

    A round that was open before goes on with the encodings that its `ledger` knows: what devices have made is in those.
    """

    def __init__(
        self,
        spec: RunSpec,
        fleet: Fleet,
        ledger: RoundJournal,
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
        self._repairs = {one.digest: ChunkResender(one, now) for one in (model, *(delta.manifest for delta in deltas))}
        if ledger.base:
            usual = ledger.encoding or spec.encoding
            self._encodings = {device: ledger.negotiated.get(device, usual) for device in ledger.invited}
        else:
            self._encodings = {device: fleet.encoding(device) for device in ledger.invited}

    def with_encodings(self, ledger: RoundJournal) -> RoundJournal:
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

    def mark_downloaded(self, device: str) -> None:
        """The device trains on the model: the next round can go on from there."""
        if is_delta(self._encodings[device]):
            self._fleet.has_version(device, self.model.digest)

    def size_bytes(self, device: str) -> int:
        """What a participant has to download; where nobody knows which version it held before the round, the whole model."""
        held = self._held[device]
        if not held or held not in self._ways or not is_delta(self._encodings[device]):
            return self.model.size_bytes
        return sum(delta.manifest.size_bytes for delta in self._ways[held])

    def resend_due(self, need: Need, now: float, waiting: int) -> list[Effect]:
        """What to publish once more for a device that misses chunks, while so many have not come to the model."""
        repairs = self._repairs.get(need.digest)
        indices = repairs.due(need, now, waiting) if repairs is not None else ()
        return [ResendChunks(need.digest, indices)] if indices else []
