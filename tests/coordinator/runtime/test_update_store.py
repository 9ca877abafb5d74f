"""Updates that are checked, written and kept decoded in the background, while the coordinator continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.blobs.blob_store import BlobStore, Place
from fedpatch.coordinator.rounds.run_effects import StoreUpdate
from fedpatch.coordinator.rounds.run_events import TimePassed
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.runtime.decoded_cache import DecodedCache
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.runtime.update_writer import UpdateWriter
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.coordinator.storage.update_files import store_update
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.messages import Committed
from tests.coordinator.effect_runners import Bench

LONG_S = 60.0


def update_of(device: str) -> StoreUpdate:
    """Return an effect of which only the device matters."""
    blob = device.encode()
    return StoreUpdate(1, device, describe(blob, chunk_bytes=1, encoding="fp32", raw_bytes=len(blob), schema=""), blob)


class Disk:
    """Stores an update when the test allows it."""

    def __init__(self, *devices: str) -> None:
        self.may = {device: threading.Event() for device in devices}

    def keep(self, effect: StoreUpdate) -> str:
        assert self.may[effect.device].wait(LONG_S)
        return effect.device.upper()


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk that allows all updates at the end, so that no thread is left waiting."""
    one = Disk("a", "b", "c")
    yield one
    for may in one.may.values():
        may.set()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_updates_come_out_in_the_order_in_which_they_arrived(disk, executor):
    done = threading.Semaphore(0)
    storing = UpdateWriter(disk.keep, done.release, executor)
    storing.submit(update_of("a"))
    storing.submit(update_of("b"))
    disk.may["b"].set()
    assert done.acquire(timeout=LONG_S)
    assert storing.completed() == []
    disk.may["a"].set()
    assert done.acquire(timeout=LONG_S)
    assert [kept for _, kept in storing.completed()] == ["A", "B"]


def test_completed_waits_for_the_oldest_beyond_the_limit(disk, executor):
    storing = UpdateWriter(disk.keep, executor=executor)
    storing.submit(update_of("a"))
    storing.submit(update_of("b"))
    disk.may["a"].set()
    assert [kept for _, kept in storing.completed(1)] == ["A"]
    assert (storing.holds("a"), storing.holds("b")) == (False, True)
    disk.may["b"].set()


@pytest.mark.parametrize("threaded", [False, True])
def test_error_of_the_disk_is_raised_by_completed(threaded, executor):

    def full(_effect: StoreUpdate) -> None:
        raise StateError("no space left")

    storing = UpdateWriter(full, executor=executor if threaded else None)
    storing.submit(update_of("a"))
    with pytest.raises(StateError, match="no space left"):
        storing.completed(0)


@pytest.mark.parametrize("threaded", [False, True])
def test_discard_runs_what_was_postponed(tmp_path, threaded, executor):
    storing = UpdateWriter(str, executor=executor if threaded else None)
    storing.submit(update_of("a"))
    storing.run_later(lambda: (tmp_path / "there").touch())
    storing.discard()
    assert (tmp_path / "there").exists()
    assert storing.completed(0) == []


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk of a coordinator; it writes a device's update when the test allows it."""
    disk = Disk("a", "b")

    def write(blobs: Place, round: int, device: str, *rest: Any) -> str:
        assert disk.may[device].wait(LONG_S)
        return store_update(blobs, round, device, *rest)

    monkeypatch.setattr("fedpatch.coordinator.runtime.update_store.store_update", write)
    yield disk
    for may in disk.may.values():
        may.set()


@pytest.fixture
def woken() -> threading.Semaphore:
    """A semaphore that is released once for each written update."""
    return threading.Semaphore(0)


@pytest.fixture
def bench(
    tmp_path: Path,
    prepared: Prepared,
    registry: Registry,
    blobs: BlobStore,
    slow: Disk,
    woken: threading.Semaphore,
    executor: ThreadPoolExecutor,
) -> Iterator[Bench]:
    """A round in which both devices have accepted; updates are written by other threads."""
    writing = {"executor": executor, "wake": woken.release}
    yield Bench(tmp_path, prepared, registry, writing=writing, blobs=blobs).begin()
    for may in slow.may.values():
        may.set()


def committed(bench: Bench) -> list[str]:
    """Return the devices whose update was committed, in order."""
    return [device for device, envelope in bench.sent if isinstance(envelope.body, Committed)]


def test_updates_are_committed_in_order_once_written(bench, slow, woken):
    bench.upload("a", 1.0)
    bench.upload("b", 3.0)
    slow.may["b"].set()
    assert woken.acquire(timeout=LONG_S)
    bench.finish_updates(wait=False)
    assert committed(bench) == []
    slow.may["a"].set()
    bench.finish_updates(wait=True)
    assert committed(bench) == ["a", "b"]
    assert {float(array.max()) for array in bench.aggregator.state.tensors.values()} == {2.0}


def test_update_written_after_the_round_is_not_counted(bench, slow):
    bench.upload("a", 1.0)
    bench.upload("b", 3.0)
    slow.may["a"].set()
    for event in bench.updates.completed(1):
        bench.perform(bench.engine.handle(event, bench.event_queue.now))
    assert committed(bench) == ["a"]
    slow.may["b"].set()
    run = bench.engine.spec.run
    bench.perform(bench.engine.handle(TimePassed(), time.monotonic() + 2 * bench.engine.spec.policy.deadline_s))
    [record] = bench.registry.rounds.records(run)
    assert (record.outcome, record.reported) == ("aggregated", 1)
    assert (committed(bench), bench.registry.rounds.updates(run, 1)) == (["a"], [])


def test_updates_that_are_done_while_events_wait_are_committed_together(tmp_path, prepared, registry, monkeypatch):
    events = ["another message"]
    bench = Bench(tmp_path, prepared, registry, writing={"events_waiting": lambda: len(events)}).begin()
    written: list[int] = []
    add: Callable[..., dict[str, str]] = registry.rounds.add_updates

    def count(run: str, updates: Sequence[StoredUpdate], accepted: Collection[str] = ()) -> dict[str, str]:
        written.append(len(updates))
        return add(run, updates, accepted)

    monkeypatch.setattr(registry.rounds, "add_updates", count)
    bench.upload("a", 1.0)
    bench.upload("b", 3.0)
    bench.finish_updates(wait=False)
    assert (committed(bench), written) == ([], [])
    events.clear()
    bench.finish_updates(wait=False)
    assert (committed(bench), written) == (["a", "b"], [2])


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=12)


def decoded_update(size: int) -> dict[str, np.ndarray]:
    return {"w": np.zeros(size, np.int8)}


@given(STEPS)
def test_cache_keeps_the_last_update_of_a_device_within_its_limit(steps):
    decoded, given_last = DecodedCache(20), {}
    for device, size in steps:
        given_last[device] = decoded_update(size)
        decoded.keep(device, given_last[device])
        kept = {name: found for name in given_last if (found := decoded.of(name)) is not None}
        assert all(found is given_last[name] for name, found in kept.items())
        assert sum(found["w"].nbytes for found in kept.values()) <= 20


def test_clear_makes_room():
    decoded = DecodedCache(10)
    decoded.keep("a", decoded_update(10))
    decoded.keep("b", decoded_update(1))
    assert decoded.of("b") is None
    decoded.clear()
    decoded.keep("b", decoded_update(10))
    assert decoded.of("a") is None
    assert decoded.of("b") is not None
