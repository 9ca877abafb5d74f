"""scripts/recording.py: the output of a terminal becomes an animated picture."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.recording import COLUMNS, ROWS, Screen, draw, record
from tests.support.paths import ROOT

SHOWN = ROOT / "docs" / "images" / "demo.svg"
SVG = "{http://www.w3.org/2000/svg}"


def test_terminal_output_is_recorded(tmp_path: Path):
    """The recording has the command, then its output with colours; the last screen is that of the end."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (apt install tmux)")
    screens = record("printf '\\033[32mgreen\\033[0m & <done>\\n'", tmp_path)
    assert "printf" in screens[-1].lines[0]
    assert any("\x1b[32mgreen" in line and "& <done>" in line for line in screens[-1].lines)
    assert '<tspan x="0" fill="#008000">green</tspan>' in draw(screens, "x")


def test_each_line_is_drawn_once_and_each_screen_shown_in_turn():
    """A line that is on several screens is also drawn once."""
    picture = draw([Screen(0.0, ("a",)), Screen(0.5, ("a", "b")), Screen(9.0, ("a", "", "c"))], "A & B")
    root = ElementTree.fromstring(picture)
    assert ["".join(text.itertext()) for text in root.iter(f"{SVG}text")] == ["a", "b", "c"]
    assert [len(list(group)) for group in root.findall(f"{SVG}g")] == [1, 2, 2]
    assert root.findtext(f"{SVG}title") == "A & B"
    assert re.findall(r"@keyframes k\d\{0%\{visibility:hidden\}(\d+\.\d+)%", picture) == ["0.000", "7.692", "23.077"]


def test_the_picture_of_the_readme_is_such_a_recording():
    """The picture shows a demo that has ended, without a script or any content of another host."""
    text = SHOWN.read_text("utf-8")
    shown = "\n".join("".join(one.itertext()) for one in ElementTree.fromstring(text).iter(f"{SVG}text"))
    assert "$ fedpatch demo" in shown
    assert re.search(r"run \S+: target reached after \d+ rounds, user accuracy 0\.9", shown)
    assert not re.search(r"<script|@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text)
    assert ROWS > 20 and max(map(len, shown.splitlines())) <= COLUMNS
