"""A download on disk: it survives restarts, notices damage, and reports a full disk."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.state.download_files import PartialBlob, cut_from_file, file_digest
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.chunks import cut, describe
from tests.support.listing import open_files

BLOB = random.Random(0).randbytes(2050)
MANIFEST = describe(BLOB, chunk_bytes=100, encoding="fp32", raw_bytes=len(BLOB), schema="5c" * 32)


def filled(directory, *indices: int) -> PartialBlob:
    """A download with these chunks written."""
    blob = PartialBlob(directory, MANIFEST)
    for index in indices:
        blob.write(cut(BLOB, MANIFEST, index))
    return blob


@given(st.permutations(range(MANIFEST.chunk_count)), st.integers(0, MANIFEST.chunk_count))
def test_a_restart_loses_nothing(tmp_path_factory, order, before):
    directory = tmp_path_factory.mktemp("downloads")
    first = filled(directory, *order[:before])
    first.close()
    second = PartialBlob(directory, MANIFEST)
    assert second.have == frozenset(order[:before])
    for index in order[before:]:
        second.write(cut(BLOB, MANIFEST, index))
    assert second.verified()
    assert second.path.read_bytes() == BLOB
    second.discard()
    assert list(directory.iterdir()) == []


def test_a_chunk_that_is_missing_shows(tmp_path):
    blob = filled(tmp_path, *range(20))
    assert not blob.verified()
    blob.write(cut(BLOB, MANIFEST, 20))
    assert blob.verified()
    blob.close()
    blob.close()


@pytest.mark.parametrize("torn_bytes", [1, 2, 3])
def test_a_torn_note_does_not_spoil_those_after_it(tmp_path, torn_bytes):
    """A power cut while a note is written loses that chunk; later notes are still read correctly."""
    filled(tmp_path, 0, 1, 2).close()
    note = tmp_path / f"{MANIFEST.digest}.have"
    os.truncate(note, 2 * 4 + torn_bytes)
    again = filled(tmp_path, 7, 8)
    assert again.have == {0, 1}
    again.close()
    third = PartialBlob(tmp_path, MANIFEST)
    assert third.have == {0, 1, 7, 8}
    third.close()


def test_notes_without_their_chunks_count_for_nothing(tmp_path):
    """A download needs both files."""
    filled(tmp_path, 0, 1).close()
    (tmp_path / f"{MANIFEST.digest}.part").unlink()
    again = filled(tmp_path, 5)
    assert again.have == frozenset()
    again.close()
    third = PartialBlob(tmp_path, MANIFEST)
    assert third.have == {5}
    third.close()


def test_indices_that_cannot_be_are_passed_over(tmp_path):
    """A note beyond the end of the blob is damage and is ignored."""
    filled(tmp_path, 3).close()
    with (tmp_path / f"{MANIFEST.digest}.have").open("ab") as note:
        note.write(b"\xff\xff\xff\xff")
    again = PartialBlob(tmp_path, MANIFEST)
    assert again.have == {3}
    again.close()


def test_a_directory_that_refuses_is_named(tmp_path):
    place = tmp_path / "downloads"
    place.write_text("a file where a directory should be")
    with pytest.raises(StateError, match=r"downloads.*name another directory"):
        PartialBlob(place, MANIFEST)


def test_a_write_that_fails_is_a_state_error(tmp_path):
    blob = filled(tmp_path)
    blob.close()
    with pytest.raises(StateError, match="free some space"):
        blob.write(cut(BLOB, MANIFEST, 0))


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """Limit the size of every file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_half_a_chunk_is_no_chunk(tmp_path):
    """If the disk stores only a part of a chunk, no note is written."""
    blob = filled(tmp_path, 0)
    with files_end_at(1950), pytest.raises(StateError, match=r"\.part.*raise the limit of a file"):
        blob.write(cut(BLOB, MANIFEST, 19))
    blob.write(cut(BLOB, MANIFEST, 5))
    blob.close()
    again = PartialBlob(tmp_path, MANIFEST)
    assert again.have == {0, 5}
    again.close()


def test_a_download_that_cannot_begin_leaves_no_file_open(tmp_path):
    for _ in range(3):
        with files_end_at(1000), pytest.raises(StateError):
            PartialBlob(tmp_path, MANIFEST)
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("use", [PartialBlob.verified, PartialBlob.discard])
def test_a_file_that_is_no_file_any_more_is_a_state_error(tmp_path, use):
    blob = filled(tmp_path, 0)
    blob.path.unlink()
    blob.path.mkdir()
    with pytest.raises(StateError, match=MANIFEST.digest):
        use(blob)
    blob.close()


def test_chunks_are_cut_from_a_file_as_from_memory(tmp_path):
    path = tmp_path / "update.bin"
    path.write_bytes(BLOB)
    for index in range(MANIFEST.chunk_count):
        assert cut_from_file(path, MANIFEST, index) == cut(BLOB, MANIFEST, index)
    assert file_digest(path) == MANIFEST.digest


def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(StateError, match=r"update\.bin"):
        cut_from_file(tmp_path / "update.bin", MANIFEST, 0)
