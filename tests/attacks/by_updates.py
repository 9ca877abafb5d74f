"""Attacks by devices that take part, then upload a forbidden update or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import msgpack
import numpy as np
import zstandard

from fedpatch.coordinator.cohort.offences import NOT_OFFENCES
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import Accept, Decline, Offer, Refused
from fedpatch.shared.wire.reason_codes import DeclineReason, RefuseReason
from tests.attacks.arena import QUARANTINE_AFTER, Arena, Outcome
from tests.attacks.attack import Proof, part
from tests.system.misdeeds import MISDEEDS, announced, changed, reported
from tests.system.rogue import NUM_EXAMPLES, Misdeed, Update, Upload


def _filled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, value)


def _packed(change: Callable[[dict[str, object], list[list[object]]], None]) -> Misdeed:
    """The update's container, with a change that `pack` would not make."""

    def misdeed(update: Update) -> Upload:
        meta: dict[str, object] = asdict(update.report)
        entries: list[list[object]] = [
            [spec.name, spec.dtype, list(spec.shape), update.tensors[spec.name].tobytes()]
            for spec in update.schema.specs
        ]
        change(meta, entries)
        raw = msgpack.packb({"meta": meta, "tensors": entries})
        return update.instead(zstandard.ZstdCompressor().compress(raw), len(raw))

    return misdeed


def _deep(meta: dict[str, object], _entries: list[list[object]]) -> None:
    for _ in range(400):
        meta["base"] = [meta["base"]]


def _extra_key(meta: dict[str, object], _entries: list[list[object]]) -> None:
    meta["diary"] = "x" * 1000


def _huge_meta(meta: dict[str, object], _entries: list[list[object]]) -> None:
    meta["base"] = "0" * 70_000


def _terminal_name(_meta: dict[str, object], entries: list[list[object]]) -> None:
    entries[0][0] = "\x1b[2J\x1b]0;owned\x07"


def _long_name(_meta: dict[str, object], entries: list[list[object]]) -> None:
    entries[0][0] = "w" * 70_000


def _twice(_meta: dict[str, object], entries: list[list[object]]) -> None:
    entries.append(list(entries[0]))


def _object_dtype(_meta: dict[str, object], entries: list[list[object]]) -> None:
    entries[0][1] = "object"


def _vast_shape(_meta: dict[str, object], entries: list[list[object]]) -> None:
    entries[0][2] = [2**40, 2**40]


_MORE: Mapping[str, tuple[str, RefuseReason, Misdeed]] = {
    "far more examples than registered": (
        "2^50 examples, and 1000 registered",
        RefuseReason.NUM_EXAMPLES,
        reported(num_examples=2**50),
    ),
    "first moments beyond the second": (
        "first moments that would make the next steps of all devices long",
        RefuseReason.OUT_OF_RANGE,
        changed("fc1.weight:exp_avg", _filled(1e6)),
    ),
    "step counts without measure": (
        "a billion steps in a round that has fifty",
        RefuseReason.OUT_OF_RANGE,
        changed("fc1.weight:step", _filled(1e9)),
    ),
    "step counts that go back": (
        "moments that would be corrected as if they were new",
        RefuseReason.OUT_OF_RANGE,
        changed("fc2.bias:step", lambda array: array - 1),
    ),
    "a user accuracy of 7": (
        "a measure beyond its limits",
        RefuseReason.OTHER_METRIC,
        reported(user_accuracy_before=7.0),
    ),
    "a report 400 lists deep": ("nesting in the report", RefuseReason.DAMAGED, _packed(_deep)),
    "a key in the report": ("a field that nobody agreed on", RefuseReason.DAMAGED, _packed(_extra_key)),
    "a report of 70 kB": ("a text without measure in the report", RefuseReason.DAMAGED, _packed(_huge_meta)),
    "a name that clears terminals": (
        "control characters for a name",
        RefuseReason.SCHEMA_MISMATCH,
        _packed(_terminal_name),
    ),
    "a name of 70 kB": ("a name without measure", RefuseReason.DAMAGED, _packed(_long_name)),
    "a tensor twice": ("one name, two tensors", RefuseReason.DAMAGED, _packed(_twice)),
    "a dtype of Python objects": (
        "a dtype that numpy would pickle",
        RefuseReason.SCHEMA_MISMATCH,
        _packed(_object_dtype),
    ),
    "a shape of 2^80 values": ("a shape that no memory holds", RefuseReason.SCHEMA_MISMATCH, _packed(_vast_shape)),
    "an offer of 2 GiB": (
        "a manifest far beyond the model",
        RefuseReason.TOO_LARGE,
        announced(size_bytes=2**31, chunk_bytes=2**20, chunk_count=2**11),
    ),
    "an offer that contradicts itself": (
        "65536 chunks of a few bytes",
        RefuseReason.DAMAGED,
        announced(chunk_count=65_536),
    ),
}


def misbehaving(reason: RefuseReason, misdeed: Misdeed) -> Callable[[Arena, str], Proof | None]:
    """Misbehave in round 1, and once more if that is no offence. The device gets the reason; an offender is not asked again."""
    offends = ("refused", reason) not in NOT_OFFENCES
    times = 1 if offends else 2

    def play(arena: Arena, device: str) -> Proof:
        with arena.rogue(device) as (rogue, _):
            verdicts = rogue.play([misdeed] * times)
        for verdict in verdicts:
            assert isinstance(verdict.answer, Refused), verdict
            assert (verdict.answer.reason, verdict.answer.digest) == (reason.on_the_wire, verdict.digest)

        def proof(outcome: Outcome) -> object:
            known = outcome.devices[device]
            assert known["refused"] >= times, known
            assert known["invited"] == 1 or not offends, known
            assert known["reported"] == 0, known
            offenders = outcome.summary["rounds"][0]["offenders"]
            return offenders.get(device) == (reason if offends else None)

        return proof

    return play


def _replays_another(arena: Arena, device: str) -> Proof:
    """Overhear an honest device's update of the first round, and upload it as the device's own in a later round."""
    downloaded: list[Chunk] = []

    def stolen(update: Update) -> Upload:
        offer = arena.spy.message(
            "up", lambda envelope, topic: topic.device in ("pi-0", "pi-1") and isinstance(envelope.body, Offer)
        )
        manifest = offer.body.manifest  # type: ignore[union-attr]
        blob = b"".join(
            arena.spy.wait(lambda event, at=index: f"/blob/{manifest.digest[:16]}/{at}" in event.topic).payload[52:]  # type: ignore[misc]
            for index in range(manifest.chunk_count)
        )
        downloaded.append(Chunk(manifest.digest, 0, 1, blob))
        return Upload(manifest, blob)

    with arena.rogue(device) as (rogue, _):
        first, _ = rogue._wait_request(0)
        rogue._reply(first, Decline(DeclineReason.UNWILLING))
        # The request of the second round is for another global model than the stolen update was trained on.
        request, work = rogue._wait_request(1)
        rogue._reply(request, Accept(NUM_EXAMPLES))
        answer = rogue._answer(request, stolen(rogue._update(work)))
    assert downloaded
    assert isinstance(answer, Refused)
    assert answer.reason == RefuseReason.WRONG_BASE
    return lambda outcome: outcome.devices[device]["reported"] == 0


def _replays_itself(arena: Arena, device: str) -> Proof:
    kept: list[Upload] = []

    def same(update: Update) -> Upload:
        if not kept:
            # Refused, but no offence: the device is asked again.
            kept.append(replace(update, report=replace(update.report, num_examples=10**6)).upload())
        return kept[0]

    with arena.rogue(device) as (rogue, _):
        verdicts = rogue.play([same, same])
    reasons = [verdict.answer.reason for verdict in verdicts if isinstance(verdict.answer, Refused)]
    assert reasons == [RefuseReason.NUM_EXAMPLES, RefuseReason.WRONG_BASE]
    return lambda outcome: outcome.devices[device]["reported"] == 0


def _quarantined_goes_on(arena: Arena, device: str) -> Proof:
    """A quarantined device continues to send messages; the coordinator turns them away."""
    with arena.rogue(device) as (rogue, _):
        asked = arena.asked()
        rogue._reply(asked, Accept(NUM_EXAMPLES))
        for number in range(QUARANTINE_AFTER):
            rogue.publish(b"no message %d" % number)
        for _ in range(200):
            rogue._reply(asked, Accept(NUM_EXAMPLES))
            try:
                event = rogue._client.wait(
                    object, lambda event: b"quarantined" in getattr(event, "payload", b""), patience_s=0.3
                )
            except TimeoutError:
                continue
            assert event
            break
        else:
            raise AssertionError("it was not put into quarantine")
    return lambda outcome: outcome.metric("fedpatch_messages_turned_away_total") > 0


UPDATE_ATTACKS = (
    *(
        part(f"update: {name}", "an update that breaks the rules", f"refused: `{reason}`", misbehaving(reason, misdeed))
        for name, (reason, misdeed) in MISDEEDS.items()
    ),
    *(
        part(f"update: {name}", does, f"refused: `{reason}`", misbehaving(reason, misdeed))
        for name, (does, reason, misdeed) in _MORE.items()
    ),
    part(
        "replay: another's update",
        "an overheard update as its own, a round later",
        "refused: `wrong_base`",
        _replays_another,
    ),
    part("replay: its own old update", "the same bytes in two rounds", "refused: `wrong_base`", _replays_itself),
    part("quarantined, and goes on", "continues to work", "`cancel`, counted", _quarantined_goes_on),
)
