"""The downloads of a job: several blobs, of which none remains that is no longer wanted."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.state.download_files import Downloads, bytes_of
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.chunks import cut
from tests.device_agent.delta_jobs import STEP_BLOBS, STEPS
from tests.support.listing import open_files
from tests.support.specs import model


def fill(downloads: Downloads, blob: bytes, *indices: int) -> None:
    for index in indices or range(model(blob).chunk_count):
        downloads.write(cut(blob, model(blob), index))


def names(directory) -> set[str]:
    return {path.stem for path in directory.iterdir()}


def test_chunks_of_several_blobs_go_to_their_own(tmp_path):
    downloads = Downloads(tmp_path, STEPS)
    for blob in STEP_BLOBS[1:]:
        fill(downloads, blob)
    fill(downloads, STEP_BLOBS[0], 1)
    assert not downloads.verified()
    fill(downloads, STEP_BLOBS[0], 0)
    assert downloads.verified()
    assert [bytes_of(downloads.blob(one.digest)) for one in STEPS] == list(STEP_BLOBS)
    downloads.discard()
    assert names(tmp_path) == set()


def test_downloaded_chunks_survive_a_reboot(tmp_path):
    """Chunks of blobs that are still wanted survive; the other blobs are deleted, and one more wanted blob begins empty."""
    first = Downloads(tmp_path, STEPS[:2])
    fill(first, STEP_BLOBS[0], 1)
    fill(first, STEP_BLOBS[1])
    first.close()
    again = Downloads(tmp_path, STEPS[1:])
    assert again.have == {STEPS[1].digest: {0}, STEPS[2].digest: set()}
    assert names(tmp_path) == {one.digest for one in STEPS[1:]}
    again.close()


def test_downloads_without_wanted_blobs_hold_no_file(tmp_path):
    first = Downloads(tmp_path, STEPS)
    fill(first, STEP_BLOBS[0])
    first.close()
    nothing = Downloads(tmp_path, ())
    assert (nothing.have, nothing.verified(), names(tmp_path)) == ({}, True, set())


def test_a_directory_that_refuses_is_named(tmp_path):
    place = tmp_path / "downloads"
    place.write_text("a file where a directory should be")
    with pytest.raises(StateError, match=r"downloads.*a file is where a directory is expected"):
        Downloads(place, STEPS)


def test_a_blob_that_cannot_be_opened_leaves_no_other_open(tmp_path):
    """An agent runs for months: a file left open at each try would use up its descriptors."""
    (tmp_path / f"{STEPS[1].digest}.part").mkdir(parents=True)
    (tmp_path / f"{STEPS[1].digest}.part" / "in the way").touch()
    with pytest.raises(StateError):
        Downloads(tmp_path, STEPS)
    assert open_files(tmp_path) == []
