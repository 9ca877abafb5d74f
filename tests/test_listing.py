"""tests.support.listing: nothing that comes and goes while it is looked at is an error."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.listing import content, listed

NAMES = st.sampled_from(["a.fp", "b.fp", ".c", "12", "x"])
PATTERNS = st.sampled_from(["*", "*/*.fp", "[!.]*", "[0-9]*/*", "x/*.fp", "updates/*/*"])


@given(st.sets(st.tuples(NAMES, NAMES), max_size=8), PATTERNS)
def test_what_stays_is_found_as_by_glob(tmp_path_factory: pytest.TempPathFactory, paths: set, pattern: str):
    """The same paths, in order."""
    folder = tmp_path_factory.mktemp("folder")
    for parent, name in paths:
        (folder / parent).mkdir(exist_ok=True)
        (folder / parent / name).touch()
    assert listed(folder, pattern) == sorted(folder.glob(pattern))


def test_a_folder_that_vanishes_before_it_is_listed_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between the moment in which it is found and the one in which it is opened, its owner deletes it."""
    for round in ("000001", "000002"):
        (tmp_path / "updates" / round).mkdir(parents=True)
        (tmp_path / "updates" / round / "ann.fp").touch()
    listing = os.listdir

    def slow(folder: Path) -> list[str]:
        names = listing(folder)
        if folder.name == "updates":
            shutil.rmtree(folder / "000001")
        return names

    monkeypatch.setattr(os, "listdir", slow)
    assert listed(tmp_path, "updates/*/*.fp") == [tmp_path / "updates" / "000002" / "ann.fp"]


def test_listing_beside_somebody_who_makes_and_deletes_raises_nothing(tmp_path: Path):
    """Some thousand times, in the way in which a coordinator keeps updates and drops them with their round."""
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            spool = tmp_path / "updates" / "000001"
            spool.mkdir(parents=True)
            (spool / "ann.fp").write_bytes(b"whole")
            (spool / "ann.fp").unlink()
            spool.rmdir()

    owner = threading.Thread(target=churn)
    owner.start()
    try:
        seen = [content(path) for _ in range(3000) for path in listed(tmp_path, "updates/*/*.fp")]
    finally:
        over.set()
        owner.join()
    assert set(seen) <= {None, b"", b"whole"}


def test_what_is_not_there_has_no_content(tmp_path: Path):
    """A file, a file that never was, and one below something that is no folder."""
    (tmp_path / "file").write_bytes(b"x")
    assert [content(tmp_path / name) for name in ("file", "none", "file/below")] == [b"x", None, None]
    assert listed(tmp_path / "file", "*") == listed(tmp_path / "none", "*/*") == []
