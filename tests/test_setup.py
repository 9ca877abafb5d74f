"""Checks of `make setup` before it installs anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

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


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_environment_of_the_demo_has_what_the_tutorial_after_it_needs(tmp_path):
    """The tutorial tests its new task, and uses the programs of device and coordinator."""
    printed = subprocess.run(
        ["make", "--dry-run", "demo", f"VENV={tmp_path}/venv"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (installed,) = re.findall(r"-m pip install .* -e '\.\[(\w+)\]' (.*?) +2>&1", printed)
    assert installed == ("demo", "pytest")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert re.match(r"fedpatch\[.*\bagent\b", extras["demo"][0]) and "coordinator" in extras["demo"][0]
