"""The update that waits to be committed, on disk."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.shared.app.files import UNFINISHED
from tests.device_agent.jobs import KEY, REQUEST
from tests.support.specs import update

UPDATE = b"u" * 350
WAITS = Spooled(KEY, update(UPDATE), REQUEST)


@pytest.fixture
def spool(tmp_path):
    """A spool with an update that has no note yet."""
    spool = UpdateSpool(tmp_path / "spool")
    spool.update_path.write_bytes(UPDATE)
    return spool


def reopened(spool: UpdateSpool) -> UpdateSpool:
    return UpdateSpool(spool.update_path.parent)


def test_note_is_found_after_a_restart_with_the_newest_epoch(spool):
    for noted in (WAITS, replace(WAITS, key=replace(KEY, epoch=2))):
        spool.save(noted)
        assert reopened(spool).load() == noted


def test_an_update_without_a_note_does_not_count(spool):
    assert reopened(spool).load() is None
    assert list(spool.update_path.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["update.bin", "offer.msgpack"])
def test_a_damaged_half_is_dropped_with_a_warning(spool, caplog, name):
    spool.save(WAITS)
    damaged: Path = spool.update_path.parent / name
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with caplog.at_level(logging.WARNING):
        assert reopened(spool).load() is None
    assert "damaged; dropped" in caplog.text
    assert not spool.update_path.exists()


def test_half_an_update_of_a_killed_training_process_goes_with_the_job(spool):
    """The half is as large as a model; each kill for lack of memory would leave another."""
    half = spool.update_path.with_name(f".{spool.update_path.name}.x{UNFINISHED}")
    half.write_bytes(UPDATE)
    spool.clear()
    assert list(spool.update_path.parent.iterdir()) == []
