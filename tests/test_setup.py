"""Checks of `make setup` before it installs anything."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.paths import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_an_environment_that_is_only_linked_to_is_never_emptied(tmp_path):
    """A linked `.venv` belongs to another checkout; a new build would first remove its content."""
    other, here = tmp_path / "other", tmp_path / "here"
    (other / "bin").mkdir(parents=True)
    (other / ".made-by-make").write_text(f"{tmp_path}/elsewhere\n")
    here.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, here)
    (here / ".venv").symlink_to(other)
    done = subprocess.run(["make", "setup"], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"make: .venv is a link to {other}" in done.stderr
    assert (other / "bin").is_dir() and (other / ".made-by-make").is_file()
