"""The file of the last global model: damage is detected, and there are never two files."""

from __future__ import annotations

import os
import stat
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.state.model_cache import BufferedModelCache, Held, ModelCache
from fedpatch.shared.errors import StateError
from tests.device_agent.disk_change_killer import Guillotine

FIRST = Held("a1" * 32, "5c" * 32, "fp32+zstd", 1000)
SECOND = Held("b2" * 32, "5c" * 32, "fp32+zstd", 1001)


@pytest.fixture
def store(tmp_path):
    return ModelCache(tmp_path / "held")


def test_nothing_is_held_at_first(store):
    assert store.version() == ""
    with pytest.raises(StateError, match=r"global\.model"):
        store.read()
    store.forget()


def test_the_next_model_takes_the_place_of_the_one_before(store):
    for held, blob in ((FIRST, b"first"), (SECOND, b"second")):
        store.write(held, blob)
        assert (store.version(), store.read()) == (held.version, (held, blob))
    assert [path.name for path in store.path.parent.iterdir()] == ["global.model"]
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    store.forget()
    assert list(store.path.parent.iterdir()) == []


@given(st.data())
def test_any_damage_is_found(tmp_path_factory, data):
    """A flipped bit or a missing end: reading raises an error, and the version is a digest or empty."""
    store = ModelCache(tmp_path_factory.mktemp("held"))
    store.write(FIRST, b"blob" * 10)
    whole = bytearray(store.path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del whole[at:]
    store.path.write_bytes(whole)
    assert len(store.version()) in (0, 64)
    with pytest.raises(StateError, match=r"global\.model"):
        store.read()


def test_killed_before_any_write_one_of_the_two_is_held(tmp_path_factory):
    """The former model or the next is held; the writer's next start removes a half-written one."""
    fatal = deaths = 0
    while True:
        fatal += 1
        store = ModelCache(tmp_path_factory.mktemp("held") / "held")
        store.write(FIRST, b"first")
        if Guillotine(fatal).run(partial(store.write, SECOND, b"second")) < fatal:
            break
        deaths += 1
        store.tidy()
        assert os.listdir(store.path.parent) == ["global.model"]
        assert store.read() in ((FIRST, b"first"), (SECOND, b"second"))
        store.write(SECOND, b"second")
        assert os.listdir(store.path.parent) == ["global.model"]
    assert deaths >= 3


def test_a_disk_that_refuses_is_named_and_keeps_what_was_held(store):
    store.write(FIRST, b"first")
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(StateError, match=r"held.*state directory"),
    ):
        patch.setattr(os, "replace", _refuse)
        store.write(SECOND, b"second")
    assert store.read() == (FIRST, b"first")


def _refuse(*_: object) -> None:
    raise OSError(13, "Permission denied")


class TestBufferedModelCache:
    def test_version_written_is_announced_and_read_before_it_is_on_disk(self, tmp_path):
        announced: list[str] = []
        buffered = BufferedModelCache(tmp_path, announced.append)
        buffered.write(SECOND, b"blob")
        assert (buffered.version(), buffered.read()) == (SECOND.version, (SECOND, b"blob"))
        assert (announced, ModelCache(tmp_path).version()) == ([SECOND.version], "")

    def test_flush_writes_the_newest_version_once(self, tmp_path):
        buffered = BufferedModelCache(tmp_path)
        buffered.flush()
        assert not (tmp_path / "global.model").exists()
        buffered.write(FIRST, b"older")
        buffered.write(SECOND, b"blob")
        buffered.flush()
        assert ModelCache(tmp_path).read() == (SECOND, b"blob")
        written = (tmp_path / "global.model").stat().st_ino
        buffered.flush()
        assert (tmp_path / "global.model").stat().st_ino == written

    def test_without_a_written_version_the_disk_is_read(self, tmp_path):
        ModelCache(tmp_path).write(SECOND, b"blob")
        assert BufferedModelCache(tmp_path).read() == (SECOND, b"blob")
