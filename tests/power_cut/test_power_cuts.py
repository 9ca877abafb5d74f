"""A power cut deletes all unsynced changes; a coordinator and a device lose no acknowledged state.

Each story runs once under strace; then the disks are built that a cut at any moment may have left (tests.power_cut.disk).
The real code continues from each disk. Records with missing or late syncs show that the tests detect lost state.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from functools import partial

import pytest

from tests.power_cut.disk import Output, Record, Sync
from tests.power_cut.judging import Judge, coordinator_keeps, device_keeps, problems
from tests.power_cut.masked_devices import masked_device_keeps
from tests.power_cut.recording import recorded_story
from tests.power_cut.write_order import order_problems
from tests.support.examples import QUICK

JUDGES: dict[str, Judge] = {
    "coordinator": coordinator_keeps,
    "coordinator-by-differences": coordinator_keeps,
    "device": device_keeps,
}
SQLITE = ".sqlite3"
_SAMPLE = 1 if os.environ.get("FAULT_SEEDS") else 3
"""One in this many disks of a coordinator is tested, since each test is a run to its end; `make faults` tests all."""


@pytest.fixture(scope="module")
def record_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Record]:
    """The recording of a story's changes to its disk; each story runs once."""
    known: dict[str, Record] = {}

    def record(name: str) -> Record:
        if name not in known:
            known[name] = recorded_story(name, tmp_path_factory.mktemp(name))
        return known[name]

    return record


@pytest.mark.slow
def test_device_keeps_its_acknowledged_state_after_any_power_cut(record_of, disks):
    """Its update, patch, personal model and daily usage, for a power cut at any moment of three rounds.

    Quick runs test a third of the disks.
    """
    record = record_of("device")
    assert len(record.steps) > 100
    assert list(problems(record, device_keeps, disks, every=3 if QUICK else 1)) == []


@pytest.mark.medium
def test_masked_device_has_the_base_and_the_revocation_list_on_disk_before_anything_leaves(record_of, disks):
    """For a power cut at any moment; without syncs the check fails."""
    record = record_of("masked-device")
    whats = [json.loads(one.what.data)["what"] for one in record.steps if isinstance(one.what, Output)]
    assert whats == ["accepted", "offered", "accepted with a list"]
    assert list(problems(record, masked_device_keeps, disks)) == []
    assert list(order_problems(record)) == []
    for name in ("masked-bases", "revocations.bin"):
        careless = record.without(lambda sync, name=name: name in sync.path)
        assert next(order_problems(careless), None), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coordinator", "coordinator-by-differences"])
def test_coordinator_after_any_power_cut_goes_on_to_the_same_end(record_of, disks, name):
    """Nothing committed is lost, no epoch is used twice, a held device stays held; the model is that of a run without a cut."""
    record = record_of(name)
    assert len(record.steps) > 300
    assert list(problems(record, coordinator_keeps, disks, every=_SAMPLE)) == []


def _forgets(what: str, sync: Sync) -> bool:
    in_sqlite = SQLITE in sync.path
    return {
        "files": not sync.is_directory and not in_sqlite,
        "directories": sync.is_directory,
        "sqlite": in_sqlite,  # as with PRAGMA synchronous=OFF
    }[what]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"),
    [*itertools.product(("device", "coordinator"), ("files", "directories", "late")), ("coordinator", "sqlite")],
)
def test_program_that_does_not_sync_is_found_out(record_of, disks, name, what):
    """Without fsync of files, of directories or of SQLite's files, or with a file's fsync after its rename, state is lost."""
    record = record_of(name)
    careless = record.with_late_syncs() if what == "late" else record.without(partial(_forgets, what))
    assert next(problems(careless, JUDGES[name], disks), None) is not None
