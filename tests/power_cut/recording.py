"""Records of the stories: each runs once under strace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.power_cut.disk import Record
from tests.power_cut.tracing import read_calls, traced
from tests.support.paths import ROOT


def recorded_story(name: str, folder: Path, *options: str) -> Record:
    """Play a story of tests.power_cut.stories in `folder`; return its changes to the disk and its marks."""
    root, log, marks = folder.resolve() / "disk", folder / "log", folder.resolve() / "marks"
    root.mkdir()
    story = [sys.executable, "-m", "tests.power_cut.stories", name, str(root / "state"), str(marks), *options]
    done = subprocess.run(traced(story, log), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Record.of(read_calls(log), root, marks)
