"""Two coordinators with standby under drawn faults: one seed here; `make faults` runs 14 (about 50 faults)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.schedules import seeds
from tests.faults.standby_drill import Drill
from tests.faults.standby_faults import FAULTS, draw
from tests.faults.standby_place import Place
from tests.support.postgresql import postgres_server
from tests.support.s3_server import S3Server

SEEDS = seeds(os.environ.get("STANDBY_SEEDS", "2119"))
"""Seed 2119 kills the relay, a broker node and the leader."""
ROUNDS = 6


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that is kept after the test if a schedule failed."""
    found = Path(tempfile.mkdtemp(prefix="fedpatch-standby-"))
    yield found
    if not list(found.rglob("what.txt")):
        shutil.rmtree(found, ignore_errors=True)


def test_the_schedules_of_make_faults_have_each_fault():
    assert {(strike.part, strike.action) for seed in range(14) for strike in draw(seed, 3)} == set(FAULTS)


@pytest.mark.faults
@pytest.mark.broker
@pytest.mark.system
@pytest.mark.timeout(300 + 400 * len(SEEDS))
def test_faults_of_all_parts_leave_the_bits_of_an_undisturbed_run(directory: Path, s3: str, s3_server: S3Server):
    failed: list[str] = []
    with postgres_server() as server, Place(directory, server, s3_server, s3, ROUNDS) as place:
        for seed in SEEDS:
            outcome = Drill(place, seed).play()
            if outcome.problems:
                failed.append("\n".join([f"seed {seed}, kept in {directory}", *outcome.diary, *outcome.problems]))
    assert not failed, "\n\n".join(failed)
