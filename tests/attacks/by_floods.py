"""Attacks by large numbers of messages, presences, chunks and device names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Decline, Envelope, Progress
from fedpatch.shared.wire.reason_codes import DeclineReason, JobPhase
from fedpatch.shared.wire.vitals import Vitals
from tests.attacks import raw
from tests.attacks.arena import MAX_DEVICES, Arena, Outcome, state
from tests.attacks.attack import Attack, Proof

_GATE = "messages per device, limited before decoding"


def _flood(
    kind: str, payloads: Callable[[Arena, Envelope], list[bytes]], proof: Proof
) -> Callable[[Arena, str], Proof]:
    """A device that is known to the fleet publishes thousands of messages as fast as it can."""

    def play(arena: Arena, device: str) -> Proof:
        asked = arena.asked(2)
        topic = topics.up(arena.fleet, device) if kind == "up" else topics.device_state(arena.fleet, device)
        there = raw.publish(topics.device_state(arena.fleet, device).encode(), state())
        packets = [raw.publish(topic.encode(), payload) for payload in payloads(arena, asked)]
        raw.flood(arena.broker.port, f"{arena.fleet}-{device}", [there, *packets])
        return proof

    return play


def _dropped(outcome: Outcome) -> object:
    return outcome.ignored("over_limit") > 0


def _progress(_arena: Arena, asked: Envelope) -> list[bytes]:
    return [encode(replace(asked, body=Progress(JobPhase.TRAINING, number, 5000))) for number in range(5000)]


def _declines(_arena: Arena, asked: Envelope) -> list[bytes]:
    return [encode(replace(asked, body=Decline(DeclineReason.UNWILLING, "no")))] * 5000


def _flapping(_arena: Arena, _asked: Envelope) -> list[bytes]:
    return [state(online=bool(number % 2), boot=str(number // 2)) for number in range(5000)]


def _garbage(_arena: Arena, _asked: Envelope) -> list[bytes]:
    return [b"\xc1" * 200] * 20_000


def _invented(arena: Arena, device: str) -> Proof:
    arena.asked(2)
    vitals, packets = encode(Envelope(Vitals(temperature_c=99.0))), []
    for number in range(10_000):
        name = f"ghost-{number}"
        state_topic = topics.device_state(arena.fleet, name).encode()
        packets.append(raw.publish(state_topic, state()))
        if number % 2:  # an offline device makes room for the next one
            packets.append(raw.publish(topics.up(arena.fleet, name).encode(), vitals))
            packets.append(raw.publish(state_topic, state(online=False)))
    raw.flood(arena.broker.port, f"{arena.fleet}-{device}", packets)

    def proof(outcome: Outcome) -> object:
        assert len(outcome.devices) <= MAX_DEVICES
        assert any(name.startswith("ghost-") for name in outcome.devices)
        return outcome.ignored("fleet_full") + outcome.ignored("over_limit") > 0

    return proof


def _ungranted(arena: Arena, device: str) -> Proof:
    arena.asked(2)
    topic = topics.update_chunk(arena.fleet, device, "ab" * 32, 7)
    there = raw.publish(topics.device_state(arena.fleet, device).encode(), state())
    raw.flood(
        arena.broker.port, f"{arena.fleet}-{device}", [there, *[raw.publish(topic.encode(), bytes(50_000))] * 1000]
    )
    return lambda outcome: outcome.ignored("not_granted") > 0


def _oversize(arena: Arena, device: str) -> Proof:
    arena.asked(2)
    topic = topics.up(arena.fleet, device).encode()
    there = raw.publish(topics.device_state(arena.fleet, device).encode(), state())
    raw.flood(arena.broker.port, f"{arena.fleet}-{device}", [there, *[raw.publish(topic, bytes(2_000_000))] * 10])
    return lambda outcome: outcome.ignored("not_ours") > 0 and outcome.ignored("over_limit") > 0


FLOODS = (
    Attack("flood: garbage", "20,000 random messages", _GATE, _flood("up", _garbage, _dropped)),
    Attack("flood: progress", "5,000 signs of life", _GATE, _flood("up", _progress, _dropped)),
    Attack("flood: declines", "5,000 refusals to work", _GATE, _flood("up", _declines, _dropped)),
    Attack("flood: presence", "disconnects and connects 2,500 times", _GATE, _flood("state", _flapping, _dropped)),
    Attack("flood: chunks without a grant", "50 MB of unrequested chunks", "only granted chunks are read", _ungranted),
    Attack(
        "flood: invented devices",
        "10,000 names; half of them send vitals and disconnect",
        "`max_devices`; unknown devices share one limit",
        _invented,
    ),
    Attack("oversize packets", "messages of 2 MB", "64 KiB a message; bytes per device", _oversize),
)
