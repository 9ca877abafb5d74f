"""Attacks by messages: nonsense, forgeries, and text that other programs could take as commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import (
    Accept,
    Cancel,
    Claim,
    Committed,
    CoordinatorState,
    Decline,
    Envelope,
    Need,
    Offer,
    Refused,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import DeclineReason, RefuseReason
from tests.attacks.arena import Arena, Outcome, state
from tests.attacks.attack import Attack, Proof

SCRIPT = "<script>alert(1)</script>"
NASTY = (
    f"\x1b]0;owned\x07\r\n2026-01-01 ERROR forged line\u2028{SCRIPT}'); DROP TABLE devices;--\" }} 1\nforged_metric 7"
)


def _publishes(payloads: list[bytes], proof: Proof) -> Callable[[Arena, str], Proof]:
    """Publish messages on the device's own topic, and wait until the last is delivered."""

    def play(arena: Arena, device: str) -> Proof:
        arena.asked()
        topic = topics.up(arena.fleet, device)
        with arena.client(device) as voice:
            voice.link.publish(topics.device_state(arena.fleet, device), state())
            for payload in payloads:
                voice.link.publish(topic, payload)
            arena.spy.wait(lambda event: event.topic == topic and event.payload == payloads[-1])
        return proof

    return play


def _not_ours(outcome: Outcome) -> object:
    return outcome.ignored("not_ours") > 0


def _answered(
    bodies: Callable[[Envelope], list[Envelope]], fits: Callable[[object], bool]
) -> Callable[[Arena, str], None]:
    """The coordinator's answer is the evidence."""

    def play(arena: Arena, device: str) -> None:
        asked = arena.asked()
        with arena.client(device) as voice:
            for envelope in bodies(asked):
                voice.link.publish(topics.up(arena.fleet, device), encode(envelope))
            arena.spy.answer(device, fits)

    return play


def _refused_for(*reasons: str) -> Callable[[object], bool]:
    return lambda body: getattr(body, "reason", "") in reasons


def _offers(asked: Envelope, **changes: object) -> list[Envelope]:
    assert isinstance(asked.body, WorkRequest)
    return [replace(asked, body=Offer(asked.body.model), **changes)]  # type: ignore[arg-type]


def _unknown(_arena: Arena, device: str) -> Proof:
    payload = encode(Envelope(Accept(1))).replace(b"accept", b"xccept")
    newer = encode(Envelope(Accept(1))).replace(b"\xa1v\x01", b"\xa1v\x09")
    _publishes([payload, newer], _not_ours)(_arena, device)
    return lambda outcome: outcome.ignored("unknown_message") >= 2


def _last_will(arena: Arena, device: str) -> None:
    """The last will of an honest device, with a boot nonce that the device never used."""
    arena.asked()
    topic = topics.device_state(arena.fleet, "pi-0")
    with arena.client(device) as voice:
        voice.link.publish(topic, state(online=False, boot="forged"), retain=False)
        arena.spy.wait(lambda event: event.topic == topic and b"forged" in event.payload)


def _on_up(arena: Arena, device: str) -> None:
    """Messages that only a coordinator may send, on a device's topic."""
    asked = arena.asked()
    bodies = (Committed("0" * 64), Cancel("late"), Refused("0" * 64, RefuseReason.LATE), asked.body)
    with arena.client(device) as voice:
        for body in bodies:
            voice.link.publish(topics.up(arena.fleet, device), encode(replace(asked, body=body)))
        arena.spy.message(
            "up", lambda envelope, topic: topic.device == device and isinstance(envelope.body, WorkRequest)
        )


def _claims(arena: Arena, device: str) -> None:
    arena.asked()
    topic = topics.coordinator_state(arena.fleet)
    with arena.client(device, topic) as voice:
        for number in range(50):
            voice.link.publish(topic, encode(Envelope(Claim(f"{device}-{number}"))))
        arena.spy.wait(lambda event: event.topic == topic and f"{device}-49".encode() in event.payload)
        voice.wait(Received, lambda event: event.topic == topic and b"coordinator_state" in event.payload)


def _poses(arena: Arena, device: str) -> None:
    arena.asked()
    topic = topics.coordinator_state(arena.fleet)
    with arena.client(device) as voice:
        voice.link.publish(topic, encode(Envelope(CoordinatorState(online=True, boot="forged-one"))))
        arena.spy.wait(lambda event: event.topic == topic and b"forged-one" in event.payload)


def _retained(arena: Arena, device: str) -> None:
    """Retained on every kind of topic, except topics that only honest devices publish on; access rules protect these."""
    fleet, digest = arena.fleet, "cd" * 32
    kept = [
        topics.coordinator_state(fleet),
        topics.run_status(fleet),
        topics.device_state(fleet, device),
        topics.up(fleet, device),
        topics.down(fleet, "pi-0"),
        topics.model_chunk(fleet, digest, 0),
        topics.update_chunk(fleet, device, digest, 0),
    ]
    with arena.client(device) as voice:
        for topic in kept:
            voice.link.publish(topic, b"\xc1 retained garbage", retain=True)
        voice.settle()
    with arena.client(f"{device}-late", *kept) as late:
        missing = set(kept)
        while missing:
            missing.discard(late.wait(Received, lambda event: event.retained).topic)
    arena.asked()


def _poison_topics(arena: Arena, device: str) -> None:
    fleet = arena.fleet
    odd = [
        f"fedpatch/1/{fleet}/dev/PI-0/up",
        f"fedpatch/1/{fleet}/dev/../up",
        f"fedpatch/1/{fleet}/dev//up",
        f"fedpatch/1/{fleet}/dev/pi-0'; DROP TABLE devices;--/up",
        f"fedpatch/1/{fleet}/dev/{SCRIPT}/state",
        f"fedpatch/1/{fleet}/dev/\u202egnp.exe/state",
        f"fedpatch/1/{fleet}/dev/{'x' * 5000}/state",
        f"fedpatch/1/{fleet}/dev/pi-0/blob/zz/99999",
        f"fedpatch/1/{fleet}/dev/" + "/".join("a" * 30),
        f"fedpatch/2/{fleet}/dev/pi-0/up",
    ]
    with arena.client(device, "fedpatch/#") as voice:
        for topic in odd:
            voice.link.publish(topic, state(tasks=True))
        for topic in odd:
            voice.wait(Received, lambda event, at=topic: event.topic == at)  # type: ignore[misc]


def _injection(arena: Arena, device: str) -> Proof:
    """Declines with text that terminals, logs, SQL, HTML and Prometheus could take as commands."""
    with arena.rogue(device) as (rogue, _):
        for after in range(2):
            asked, _work = rogue._wait_request(after)
            rogue._reply(asked, Decline(DeclineReason.SCHEMA_MISMATCH if after else DeclineReason.UNWILLING, NASTY))

    def proof(outcome: Outcome) -> object:
        assert "owned" in outcome.stderr
        for forbidden in ("\x1b", "\x07", "\u2028"):
            assert forbidden not in outcome.stderr
        assert not any(line.startswith("2026-01-01 ERROR forged") for line in outcome.stderr.splitlines())
        assert "forged_metric" not in outcome.metrics
        return outcome.devices[device]["declined"] > 0

    return proof


def _version(arena: Arena, device: str) -> Proof:
    """A device that is asked for work, so that the coordinator remembers it, and declines."""
    version = f"{SCRIPT}'); DROP TABLE--"
    with arena.rogue(device) as (rogue, voice):
        voice.link.publish(topics.device_state(arena.fleet, device), state(tasks=True, version=version), retain=True)
        asked, _work = rogue._wait_request(0)
        rogue._reply(asked, Decline(DeclineReason.UNWILLING))
    return lambda outcome: outcome.devices[device]["version"] == version


def _huge_need(asked: Envelope) -> list[Envelope]:
    return [replace(asked, body=Need("0" * 64, b"\xff" * 8192))]


DEEP = b"\x91" * 60_000
VAST = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xdb\xff\xff\xff\xff",
]
_LONG = encode(Envelope(Accept(1))).replace(b"\xa1k\xa0", b"\xa1k\xda\xea\x60" + b"k" * 60_000)

_DECODER = "sizes and depth checked before memory is allocated"

MESSAGE_ATTACKS = (
    Attack("deep nesting", "60,000 lists in each other", _DECODER, _publishes([DEEP], _not_ours)),
    Attack("vast containers", "headers with a size of 4 GiB", _DECODER, _publishes(VAST, _not_ours)),
    Attack("long text", "a task's name of 60 kB", _DECODER, _publishes([_LONG], _not_ours)),
    Attack("unknown message", "unknown types and versions", "counted, ignored", _unknown),
    Attack(
        "stale epoch",
        "offers to an earlier coordinator",
        "refused: `stale_epoch`",
        _answered(lambda asked: _offers(asked, epoch=0), _refused_for("stale_epoch")),
    ),
    Attack(
        "another run",
        "offers to an unknown run",
        "refused: `late`",
        _answered(lambda asked: _offers(asked, run="no-such-run"), _refused_for("late")),
    ),
    Attack(
        "a round in the future",
        "offers to round 2^53",
        "refused: `late`",
        _answered(lambda asked: _offers(asked, round=2**53), _refused_for("late")),
    ),
    Attack(
        "uninvited",
        "offers without an invitation",
        "refused: `not_invited`",
        _answered(_offers, _refused_for("not_invited", "late")),
    ),
    Attack(
        "wants the whole model again",
        "65,536 missing chunks of an unknown model",
        "`cancel`; repairs are bounded",
        _answered(_huge_need, _refused_for("not_invited", "late")),
    ),
    Attack(
        "forged last will", "a device's last will, of another start", "its boot nonce is not the latest", _last_will
    ),
    Attack("coordinator's words from a device", "`committed` and `work_request` on `up`", "ignored", _on_up),
    Attack("claims without an end", "50 claims", "one answer each", _claims),
    Attack("poses as a coordinator", "another coordinator's presence", "devices ignore other runs", _poses),
    Attack("retained garbage", "on each kind of topic", "not decoded, ignored", _retained),
    Attack(
        "poison topics", "names that are paths, SQL, HTML, or endless", "topics must match completely", _poison_topics
    ),
    Attack(
        "words that are commands",
        "a decline with control characters, SQL, HTML and a metric in it",
        "escaped in all output",
        _injection,
        part=True,
    ),
    Attack(
        "a version that is a script",
        "HTML and SQL in its presence",
        "bound parameters; escaped in the report",
        _version,
        part=True,
    ),
)
