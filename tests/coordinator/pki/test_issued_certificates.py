"""fedpatch.coordinator.pki.issued_certificates: what is not the record of a CA is never taken for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.pki import issued_certificates as index_file
from fedpatch.coordinator.pki.issued_certificates import DEVICE, INDEX_NAME, Entry, Index, read_index, write_index
from fedpatch.shared.errors import StateError

INDEX = Index(fleet="kitchen", entries=(Entry(serial="1f", part=DEVICE, name="pi-1", not_after=9),))


def test_a_record_is_read_as_it_was_written(tmp_path: Path):
    """Where there is none, there is no CA; also where its directory would be, something else may be."""
    write_index(tmp_path, INDEX)
    assert read_index(tmp_path) == INDEX
    assert read_index(tmp_path / "nowhere") is None
    assert read_index(tmp_path / INDEX_NAME) is None


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (replace(INDEX, version=2), "has version 2, and this fedpatch knows 1"),
        (INDEX.with_entry(replace(INDEX.entries[0], name="pi-2")), "names a serial number twice; put it back"),
    ],
)
def test_a_record_that_this_fedpatch_cannot_trust_is_refused(tmp_path: Path, index: Index, words: str):
    """Of a later version, or with two holders of one number: revoking one would revoke the other."""
    write_index(tmp_path, index)
    with pytest.raises(StateError, match=words):
        read_index(tmp_path)


def test_a_record_that_cannot_be_read_is_an_error_and_not_no_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a new CA would be made over it, or a revoked device let in."""
    (tmp_path / INDEX_NAME).mkdir()
    with pytest.raises(StateError, match="run fedpatch as the user whom the CA belongs to"):
        read_index(tmp_path)
    (tmp_path / INDEX_NAME).rmdir()
    write_index(tmp_path, INDEX)
    monkeypatch.setattr(index_file, "MAX_INDEX_BYTES", 99)
    with pytest.raises(StateError, match="larger than 99 bytes"):
        read_index(tmp_path)
