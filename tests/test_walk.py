"""The distance that one update travels through the code: a bound on files and changes of file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
def test_walk_of_one_update_stays_short():
    """Well above today's figures, which `python -m scripts.walk_update` prints; a new layer would exceed the bounds."""
    command = [sys.executable, "-m", "scripts.walk_update", "--json"]
    steps = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120).stdout)
    assert 40 < len(steps["update"]["files"]) <= 70
    assert 400 < steps["update"]["changes"] <= 840
    assert 20 < len(steps["agent"]["files"]) <= 38
