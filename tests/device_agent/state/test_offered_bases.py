"""The bases of masked updates on disk: kept before the offer leaves, and for ever."""

from __future__ import annotations

import stat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_effects import SaveBase
from fedpatch.device_agent.job.job_events import EffectFailed
from fedpatch.device_agent.state.offered_bases import DIGEST_BYTES, OFFERED_BASES_FILE, OfferedBases
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.effect_runners import performer_of
from tests.device_agent.fake_link import Wire

ONE, TWO = "0a" * 32, "0b" * 32


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=8))
def test_each_added_base_is_read_back_by_the_next_process(tmp_path_factory, digests):
    directory = tmp_path_factory.mktemp("state")
    for digest in digests:
        OfferedBases(directory).add(digest.hex())
    assert OfferedBases(directory).load() == frozenset(digest.hex() for digest in digests)


def test_record_grows_by_32_bytes_for_each_base_and_only_the_owner_may_read_it(tmp_path):
    bases = OfferedBases(tmp_path)
    bases.add(ONE)
    before = bases.path.stat().st_size
    bases.add(TWO)
    bases.add(ONE)
    assert bases.path.stat().st_size == before + DIGEST_BYTES
    assert stat.S_IMODE(bases.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-9] + b"\x00" * 9])
def test_damaged_record_is_kept_and_named_with_the_remedy(tmp_path, caplog, damage):
    bases = OfferedBases(tmp_path)
    bases.add(ONE)
    bases.path.write_bytes(damage(bases.path.read_bytes()))
    assert OfferedBases(tmp_path).load() is None
    assert f"restore {OFFERED_BASES_FILE} from a copy, or move it away" in caplog.text
    assert bases.path.exists()


def test_offer_does_not_follow_where_the_disk_refuses_the_base(tmp_path, monkeypatch):
    wire: Any = Wire()
    runner = performer_of(tmp_path, wire, None)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedpatch.device_agent.state.offered_bases.write_atomic", refuse)
    [event] = runner.run_effect(SaveBase(ONE))
    assert isinstance(event, EffectFailed)
    assert event.reason is FailReason.STORAGE


def test_effect_writes_the_base(tmp_path):
    wire: Any = Wire()
    performer_of(tmp_path, wire, None).run_effect(SaveBase(ONE))
    assert OfferedBases(tmp_path).load() == frozenset({ONE})
