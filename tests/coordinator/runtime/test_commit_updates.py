"""The commit of updates: what is on the disk before the engine learns of an update."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.rounds.run_effects import StoreUpdate
from fedpatch.coordinator.rounds.run_events import UpdateRejected, UpdateStored
from fedpatch.coordinator.runtime.commit_updates import Checked, UpdateCommits
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.reason_codes import RefuseReason

TENSORS = {"w": np.zeros(1, np.float32)}


class Disk:
    """Records syncs, rows and kept updates; `given` has the digests that devices have given before."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.steps: list[tuple[str, object]] = []
        self.given = given or {}

    def commits(self, *awaited: str) -> UpdateCommits:
        """Return the commits of a round that awaits these devices."""
        blobs: Any = SimpleNamespace(sync=lambda _: self.steps.append(("sync", "")))
        registry: Any = SimpleNamespace(rounds=SimpleNamespace(add_updates=self._add))
        current = SimpleNamespace(round=SimpleNamespace(awaits=lambda device: device in awaited))
        engine: Any = SimpleNamespace(open=current, spec=SimpleNamespace(run="run-1"))
        counters: Any = SimpleNamespace(accepted={"a"})
        return UpdateCommits(blobs, registry, engine, counters, lambda device, _: self.steps.append(("keep", device)))

    def _add(self, _run: str, rows: Any, _accepted: object) -> Mapping[str, str]:
        self.steps.append(("rows", tuple(row.device for row in rows)))
        return self.given


def done(
    device: str, checked: Checked | UpdateRefused = (None, TENSORS)
) -> tuple[StoreUpdate, Checked | UpdateRefused]:
    """Return an update of round 1 that is written, or refused."""
    blob = device.encode()
    manifest = describe(blob, chunk_bytes=1, encoding="fp32", raw_bytes=len(blob), schema="")
    return StoreUpdate(1, device, manifest, blob), checked


def test_files_and_rows_of_a_group_are_on_the_disk_before_the_first_update_is_reported():
    disk = Disk()
    events = disk.commits("a", "b").commit([done("a"), done("b")])
    first = next(events)
    assert disk.steps == [("sync", ""), ("rows", ("a", "b")), ("keep", "a")]
    assert (type(first), first.device) == (UpdateStored, "a")
    assert [event.device for event in events] == ["b"]


@pytest.mark.parametrize("update", [done("late"), done("a", UpdateRefused(RefuseReason.NORM_BOUND, "too far"))])
def test_update_that_does_not_count_leaves_no_row_and_is_not_kept(update):
    disk = Disk()
    [event] = disk.commits("a").commit([update])
    assert disk.steps == []
    assert isinstance(event, UpdateRejected) == isinstance(update[1], UpdateRefused)


def test_second_update_of_a_device_is_rejected_with_the_digest_of_the_first():
    disk = Disk(given={"a": "ab" * 32})
    [event] = disk.commits("a").commit([done("a")])
    assert isinstance(event, UpdateRejected)
    assert (event.reason, event.detail) == (
        RefuseReason.ALREADY_COMMITTED,
        "a has already given abababababab in round 1",
    )
    assert ("keep", "a") not in disk.steps
