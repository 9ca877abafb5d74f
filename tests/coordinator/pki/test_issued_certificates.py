"""The record of a CA: writing, reading, and refusing other files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.pki import issued_certificates as index_file
from fedpatch.coordinator.pki.issued_certificates import DEVICE, INDEX_NAME, Entry, Index, read_index, write_index
from fedpatch.shared.errors import StateError

INDEX = Index(fleet="kitchen", entries=(Entry(serial="1f", part=DEVICE, name="pi-1", not_after=9),))


def test_record_survives_writing_and_reading(tmp_path: Path):
    write_index(tmp_path, INDEX)
    assert read_index(tmp_path) == INDEX
    assert read_index(tmp_path / "nowhere") is None
    assert read_index(tmp_path / INDEX_NAME) is None


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (replace(INDEX, version=2), "has version 2, and this fedpatch knows 1"),
        (INDEX.with_entry(replace(INDEX.entries[0], name="pi-2")), "names a serial number twice; put it back"),
        (replace(INDEX, fleet="kitchen\n"), "is damaged"),
        (replace(INDEX, entries=(replace(INDEX.entries[0], serial="1f\n"),)), "is damaged"),
    ],
)
def test_record_of_a_later_version_or_with_impossible_entries_is_refused(tmp_path: Path, index: Index, words: str):
    write_index(tmp_path, index)
    with pytest.raises(StateError, match=words):
        read_index(tmp_path)


def test_unreadable_record_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a new CA would replace it, or a revoked device would be accepted."""
    (tmp_path / INDEX_NAME).mkdir()
    with pytest.raises(StateError, match="run fedpatch as the user whom the CA belongs to"):
        read_index(tmp_path)
    (tmp_path / INDEX_NAME).rmdir()
    write_index(tmp_path, INDEX)
    monkeypatch.setattr(index_file, "MAX_INDEX_BYTES", 99)
    with pytest.raises(StateError, match="larger than 99 bytes"):
        read_index(tmp_path)
