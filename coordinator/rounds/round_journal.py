"""The journal of an open round, with which another process continues the round after a crash.

It is on disk before the first invitation, and an update is on disk before its device gets `committed`. The coordinator learns
the rest (working devices, partial uploads) from the devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.codec import from_bytes, to_bytes, to_plain
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import UpdateReport


@dataclass(frozen=True)
class MaskingEntry:
    """A step of a masked round, on disk before the messages that depend on it (coordinator.rounds.masked_round).

    Attributes:
        group: Number of the group; 0 for the terms, which hold for the whole round.
        step: "terms", "roster", "shares", "masking" (the masking set is fixed), "codes" (of a member over it), "reported" (the
            reported set), "agreement" (of a member to it) or "reveal".
        device: The sender of shares or a reveal; of "terms" without content, a relay that sends its site's sum; else "".
        content: The step, packed by shared.wire.codec.
    """

    group: int
    step: str
    device: str
    content: bytes


@dataclass(frozen=True)
class RoundJournal:
    """The journal of an open round.

    Attributes:
        round: Number of the round.
        target: Devices that the round is meant for.
        invited: The invited devices.
        base: Digest of the round's model; "" for a round whose model is not published yet.
        accepted: Devices that have accepted, as far as is known.
        spent_s: Seconds of the deadline that have passed.
        closing: Whether the aggregation has begun, so that no later update counts.
        encoding: The encoding of updates; "" if it is unknown.
        negotiated: Devices with another encoding of their updates.
        absent: Invited devices that `target` does not count.
        offenders: Devices whose updates were refused for an offence, each with the offence.
        departed: Devices that left the count without an offence, each with its state and the reason.
        grouped: Whether the groups of a masked round are drawn; after that no device joins.
        unmasking: Whether unmasking has begun; after that no update counts.
        carried: Work for earlier rounds by device: unfinished, or committed and waiting (coordinator.buffered).
        evaluates: Whether devices only measure. Such a round has no journal on the disk: after a crash it begins again.
    """

    round: int
    target: int
    invited: tuple[str, ...]
    base: str
    accepted: frozenset[str] = frozenset()
    spent_s: float = 0.0
    closing: bool = False
    encoding: str = ""
    negotiated: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    offenders: Mapping[str, str] = field(default_factory=dict)
    departed: Mapping[str, tuple[State, str]] = field(default_factory=dict)
    grouped: bool = False
    unmasking: bool = False
    carried: Mapping[str, CarriedWork] = field(default_factory=dict)
    evaluates: bool = False


@dataclass(frozen=True)
class CommittedUpdate:
    """A committed update.

    Attributes:
        digest: SHA-256 of the packed update.
        size_bytes: Size of the packed update.
        report: The device's report; None for a masked update.
        work: The carried work that it results from; None for an update of the round itself.
    """

    digest: str
    size_bytes: int
    report: UpdateReport | None
    work: CarriedWork | None = None


@dataclass(frozen=True)
class RoundStart:
    """The start of a new round, or of a round that an earlier process has opened.

    Attributes:
        journal: The journal. A new round has no `base` in it yet.
        updates: The committed updates of a continued round, by device.
        masking: The steps of its groups, in the order in which they were saved.
    """

    journal: RoundJournal
    updates: Mapping[str, CommittedUpdate] = field(default_factory=dict)
    masking: Sequence[MaskingEntry] = ()

    @property
    def terms(self) -> SecureTerms | None:
        """The terms that a continued masked round began with; None for another round."""
        content = self._saved_terms
        return None if content is None else from_bytes(content, SecureTerms)

    @property
    def measures(self) -> bool | None:
        """True if a continued masked round measures learning alone; None for another round."""
        content = self._saved_terms
        return None if content is None else from_bytes(content, _Measurement).measure_independent

    @property
    def _saved_terms(self) -> bytes | None:
        saved = (entry.content for entry in self.masking if entry.step == "terms" and not entry.device)
        return next(saved, None)


@dataclass(frozen=True)
class _Measurement:
    """The part of the saved terms beside SecureTerms."""

    measure_independent: bool


def terms_entry(terms: SecureTerms, *, measures: bool) -> MaskingEntry:
    """Return the step with the terms of a masked round.

    Its request has the terms and the measurement of learning alone, and the keys of its groups depend on both.
    """
    content = {**to_plain(terms), "measure_independent": measures}
    return MaskingEntry(0, "terms", "", to_bytes(content))


learn_types(_Measurement)
