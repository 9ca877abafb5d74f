"""The distance that one update travels through the code: a bound on files and changes of file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
def test_walk_of_one_update_stays_short():
    """The bounds of files are the figures of `python -m scripts.walk_update`, plus three files that are read once a second."""
    command = [sys.executable, "-m", "scripts.walk_update", "--json"]
    steps = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120).stdout)
    assert 30 < len(steps["update"]["files"]) <= 52 + 3
    assert 400 < steps["update"]["changes"] <= 660
    assert 8 < len(steps["middle chunk"]["files"]) <= 12 + 3
    assert 20 < len(steps["agent"]["files"]) <= 33
