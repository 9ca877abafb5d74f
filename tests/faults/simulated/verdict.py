"""Invariants at the end of a schedule and of the run without faults that follows it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
from fedpatch.device_agent.state.patch_store import PatchKey, PatchStore
from tests.faults.simulated.lesson import FIRST_PATCH, POLICY, SCHEMA
from tests.faults.simulated.oracle import _same
from tests.faults.simulated.world import World

SETTLED_S = 120.0


def judge(world: World) -> None:
    """Check that the run left nothing open, that a round without faults then has all devices, and that no files are left."""
    given_up = [line for line in world.coordinator.lines if "cannot go on" in line]
    assert not given_up, "; ".join(given_up)
    _nothing_is_open(world)
    first = world.oracle.run
    world.calm()
    world.wait(lambda: False, SETTLED_S)
    world.coordinator.settings = calm_settings(world)
    world.coordinator.wanted = "new"
    world.coordinator.start_at = world.now
    world.play()
    summary = world.coordinator.summary
    assert summary is not None and summary.run != first
    assert [(one.outcome, one.reported) for one in summary.rounds] == [("aggregated", len(world.devices))], (
        f"a calm round has not everybody in it: {summary.rounds}"
    )
    world.wait(lambda: all(device.idle for device in world.devices.values()), SETTLED_S)
    busy = [name for name, device in world.devices.items() if not device.idle]
    assert not busy, f"{', '.join(busy)} still work when all is over"
    _nothing_is_open(world)
    left = sorted({str(path) for device in world.devices.values() for path in _left(device.directory)})
    assert not left, f"files are left: {', '.join(left)}"
    retained = [topic for topic in world.broker.retained if "/blob/" in topic]
    assert not retained, f"the broker still retains {len(retained)} chunks of a model, as {retained[0]}"
    _patches_are_right(world)


def calm_settings(world: World) -> RunSettings:
    given = world.settings
    return replace(
        given,
        rounds=1,
        quorum=1.0,
        participation=1.0,
        state_dir=world.coordinator.directory,
        deadline_s=600.0,
        quorum_updates=None,
        concurrency=None,
    )


def _nothing_is_open(world: World) -> None:
    directory = world.coordinator.directory
    with closing(sqlite3.connect(directory / REGISTRY_FILE)) as db:
        for table in ("open_rounds", "acceptances", "updates", "masking", "carried_work"):
            # The groups of a run stay, since the run may be resumed with more rounds.
            rounds = " WHERE round != 0" if table == "masking" else ""
            rows = db.execute(f"SELECT * FROM {table}{rounds}").fetchall()
            assert not rows, f"the registry still has {table} when the run is over: {rows}"
    left = [str(path) for path in directory.glob("runs/*/updates/*")]
    assert not left, f"updates of rounds that are over are left: {', '.join(left)}"


def _left(directory: Path) -> Iterator[Path]:
    for part in ("spool", "downloads"):
        yield from (directory / part).glob("*") if (directory / part).is_dir() else ()
    yield from directory.rglob("*.tmp")


def _patches_are_right(world: World) -> None:
    key = PatchKey("digits", SCHEMA.digest, str(POLICY))
    for name, device in world.devices.items():
        found = PatchStore(device.directory / "patches").load(key, "another run", 1)
        history = world.oracle.patches[name]
        expected = history[-1].after if history else FIRST_PATCH
        assert _same(found.values or FIRST_PATCH, expected), f"the patch of {name} on its disk is another one"
