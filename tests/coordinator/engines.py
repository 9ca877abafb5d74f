"""Engines in known states, and all messages of a device in a round in one call."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from fedpatch.coordinator.rounds.active_round import ActiveRound
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, Effect, EndRun, StoreUpdate
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import (
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    ModelPublished,
    RunStarted,
    UpdateStored,
)
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Accept, Body, Grant, Offer
from tests.support.specs import envelope_of, gone, model, report, run_spec, sent, there, update

BLOB = b"u" * 350
DIGEST = update(BLOB).digest


def engine(records: Sequence[RoundRecord] = (), now: float = 0.0, **changes: Any) -> Engine:
    """Return an engine that has started."""
    resumable = changes.pop("resumable", None)
    made = Engine(run_spec(**changes), records=records, resumable=resumable, jitter=random.Random(1))
    made.handle(RunStarted(), now)
    return made


def asking(devices: str = "ab", **changes: Any) -> Engine:
    """Return an engine whose first round has invited these devices."""
    made = engine(devices=len(devices), **changes)
    join(made, devices)
    made.handle(ModelPublished(model()), 0.0)
    return made


def join(made: Engine, devices: Iterable[str], now: float = 0.0, boot: str = "b1") -> None:
    """Bring devices online."""
    for device in devices:
        made.handle(DevicePresence(device, there(boot)), now)


def leave(made: Engine, devices: Iterable[str], now: float) -> None:
    """Take devices offline."""
    for device in devices:
        made.handle(DevicePresence(device, gone()), now)


def accept(made: Engine, devices: Iterable[str], now: float = 1.0) -> None:
    """Let devices accept round 1."""
    for device in devices:
        send(made, device, Accept(10), now)


def current(made: Engine) -> ActiveRound:
    """Return the open round."""
    assert made.open is not None
    return made.open


def end_of(effects: Iterable[Effect]) -> EndRun:
    """Return the only EndRun among these effects."""
    [end] = [effect for effect in effects if isinstance(effect, EndRun)]
    return end


def send(made: Engine, device: str, body: Body, now: float = 1.0, number: int = 1, **changes: Any) -> list[Effect]:
    """Handle a message of a device; return the effects."""
    return made.handle(DeviceMessage(device, envelope_of(body, number, **changes)), now)


def report_of(made: Engine, device: str, now: float = 5.0, accuracy: float | None = 0.5) -> list[Effect]:
    """Handle a device's whole round; return the effects of its report."""
    number = made.last_round
    send(made, device, Accept(10), now, number)
    assert isinstance(sent(send(made, device, Offer(update(BLOB)), now, number))[0][1], Grant)
    last = [made.handle(ChunkReceived(device, cut(BLOB, update(BLOB), index)), now) for index in range(4)][-1]
    assert kinds(last) == [StoreUpdate]
    return made.handle(UpdateStored(made.last_round, device, DIGEST, report(accuracy)), now)


def report_all(made: Engine, devices: Iterable[str], now: float = 5.0, accuracy: float | None = 0.5) -> list[Effect]:
    """Handle the whole round of several devices; return the effects of the last report."""
    return [report_of(made, device, now, accuracy) for device in devices][-1]


def aggregating() -> Engine:
    """Return an engine that aggregates a's update without b's, at second 5."""
    made = asking("ab", quorum=0.5, grace_s=0.0)
    accept(made, "ab")
    assert report_of(made, "a")[-1] == AggregateUpdates(1, ("a",))
    return made


def kinds(effects: list[Effect]) -> list[type]:
    """Return the types of these effects."""
    return [type(effect) for effect in effects]
