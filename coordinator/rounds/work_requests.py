"""Invitations: the work request of each participant.

A request names an encoding that the device supports, and the model deltas from the version that the device holds to the
round's model. If that version is unknown, the request names all deltas. A device without a delta encoding downloads the whole
model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from msgspec import UNSET

from fedpatch.coordinator.rounds.chunk_resends import ChunkResender
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.run_effects import Effect, ResendChunks
from fedpatch.coordinator.rounds.run_events import ModelPublished
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.masking.revocation import RevocationList
from fedpatch.shared.wire.features import COORDINATOR_FEATURES, INDEPENDENT_FEATURE, MEMBERS_FEATURE, URL_FEATURE
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS, SUM_ENCODING, SecureTerms
from fedpatch.shared.wire.messages import Need, WorkRequest, is_delta


def masked_encoding(bits: int) -> str:
    """Return the encoding of updates whose masked values have `bits` bits."""
    return MASKED_ENCODINGS[bits // 8 - 1]


def measures_independent(every: int, round: int) -> bool:
    """Return whether devices measure in this training round the user accuracy of learning alone; never in the first one."""
    return every > 0 and round > 1 and round % every == 0


class Invitations:
    """The work requests of one round.

    Args:
        spec: The terms of the run.
        fleet: The known devices, with the encodings that they support and the versions that they hold.
        journal: The journal of the round. A continued round keeps its encodings, since devices have made updates in them.
        published: The round's model, and the deltas that lead to it.
        now: The time at which these were published, in seconds.
        secure: The terms of a masked round. Its updates travel masked, its models in the same encodings as in other rounds.
        sums: The relays that are asked for the sum of their site in a masked round.
        revoked: The list of revoked certificates that travels in the requests of a round with signed keys.
    """

    def __init__(
        self,
        spec: RunSpec,
        fleet: Fleet,
        journal: RoundJournal,
        published: ModelPublished,
        now: float = 0.0,
        secure: SecureTerms | None = None,
        sums: Collection[str] = (),
        revoked: RevocationList | None = None,
    ) -> None:
        model, deltas = published.manifest, published.deltas
        self.model = model
        self._urls = published.urls
        self._counted = published.counted
        self._content = published.content or UNSET
        self._sums = sums
        self._secure = secure
        self._revoked = revoked
        self._spec = spec
        self._fleet = fleet
        self._evaluates = journal.evaluates
        # A masked round never measures learning alone: the rest of the deadline decides on a device whether it still does, so
        # that the sum could hold the figure of one device.
        alone = secure is None and not journal.evaluates
        self._measures = alone and measures_independent(spec.independent_every, journal.round)
        self._privacy = spec.privacy.terms(journal.target) if spec.privacy is not None else None
        # Deltas to download, by the version that a device holds ("" for an unknown version).
        self._ways = {"": tuple(deltas), model.digest: ()}
        self._ways |= {delta.base: tuple(deltas[at:]) for at, delta in enumerate(deltas)}
        self._held = {device: fleet.version(device) for device in journal.invited}
        unpublished = published.urls if fleet.all_know(journal.invited, URL_FEATURE) else {}
        self._repairs = {
            one.digest: ChunkResender(one, now, unpublished=one.digest in unpublished)
            for one in (model, *(delta.manifest for delta in deltas))
        }
        if journal.base:
            usual = journal.encoding or spec.encoding
            self._encodings = {device: journal.negotiated.get(device, usual) for device in journal.invited}
        else:
            self._encodings = {device: fleet.encoding(device) for device in journal.invited}

    def with_encodings(self, journal: RoundJournal) -> RoundJournal:
        """Return the journal with the model and the encodings of the devices."""
        usual = journal.encoding or self._spec.encoding
        others = {device: encoding for device, encoding in self._encodings.items() if encoding != usual}
        return replace(journal, base=self.model.digest, encoding=usual, negotiated=others)

    def request(self, device: str, remaining_s: float) -> WorkRequest:
        """Return the work request of a participant; `remaining_s` is the time to the deadline."""
        request = replace(
            self.common_request,
            encoding=self.encoding(device),
            deadline_s=remaining_s,
            deltas=self._ways.get(self._held[device], ()) if is_delta(self._encodings[device]) else (),
            features=(*COORDINATOR_FEATURES, MEMBERS_FEATURE)
            if self._fleet.may_be_relay(device)
            else COORDINATOR_FEATURES,
            measure_independent=self._measures and self._fleet.knows(device, INDEPENDENT_FEATURE),
            counted=self._counted.get(device, 0) if self._spec.plan.has_controls else UNSET,
            leader_epoch=UNSET if self._spec.leader_epoch is None else self._spec.leader_epoch,
        )
        return request.at(self._urls) if self._urls and self._fleet.knows(device, URL_FEATURE) else request

    @property
    def common_request(self) -> WorkRequest:
        """The part of the work request that is the same for all participants."""
        spec, secure = self._spec, self._secure
        return WorkRequest(
            schema=spec.schema,
            private=spec.private,
            plan=spec.plan,
            model=self.model,
            encoding=spec.encoding if secure is None else masked_encoding(secure.bits),
            chunk_bytes=spec.chunk_bytes,
            deadline_s=0.0,
            features=COORDINATOR_FEATURES,
            privacy=self._privacy,
            secure=secure,
            evaluate=self._evaluates or UNSET,
            content=self._content,
            revocations=UNSET if self._revoked is None else self._revoked.der,
        )

    def encoding(self, device: str) -> str:
        """Return the encoding of a participant's update."""
        if self._secure is None:
            return self._encodings[device]
        return SUM_ENCODING if device in self._sums else masked_encoding(self._secure.bits)

    def restarted(self, device: str) -> None:
        """Choose the encoding of a restarted device again: it has lost its work, and may have another version."""
        self._encodings[device] = self._fleet.encoding(device)

    def mark_downloaded(self, device: str) -> None:
        """Note that the device holds the round's model, the base of the next delta; an evaluate round notes nothing."""
        if is_delta(self._encodings[device]) and not self._evaluates:
            self._fleet.note_version(device, self.model.digest)

    def size_bytes(self, device: str) -> int:
        """Return the bytes that a participant downloads; those of the whole model if its version is unknown."""
        held = self._held[device]
        if not held or held not in self._ways or not is_delta(self._encodings[device]):
            return self.model.size_bytes
        return sum(delta.manifest.size_bytes for delta in self._ways[held])

    def publishes(self, digest: str) -> bool:
        """Return whether a blob is the round's model or a delta that leads to it."""
        return digest in self._repairs

    def resend_due(self, need: Need, now: float, waiting: int) -> list[Effect]:
        """Return the effect that publishes missing chunks again.

        Args:
            need: The request of a device.
            now: The time, in seconds.
            waiting: Devices that have not downloaded the model yet.
        """
        repairs = self._repairs.get(need.digest)
        indices = repairs.due(need, now, waiting) if repairs is not None else ()
        return [ResendChunks(need.digest, indices)] if indices else []
