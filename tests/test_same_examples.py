"""Property tests that stop others have the same examples wherever they are played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

DRAW = """
import sys
from hypothesis import given, settings, strategies as st
from tests.support.same_examples import forget_what_is_loaded
forget_what_is_loaded()
for name in sys.argv[1:]:
    __import__(name)
drawn = []

@settings(derandomize=True, max_examples=300)
@given(st.tuples(st.integers(), st.text(), st.binary(), st.floats()))
def draw(values):
    drawn.append(repr(values))

draw()
print(drawn)
"""


def test_the_examples_do_not_depend_on_what_is_loaded(tmp_path: Path):
    """Of three hundred examples none is another one where modules of ours are loaded."""
    program = tmp_path / "draw.py"
    program.write_text(DRAW)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    drawn = [
        subprocess.run([sys.executable, program, *modules], cwd=ROOT, env=environment, capture_output=True, check=True)
        for modules in ([], ["fedpatch.shared.wire.messages", "fedpatch.coordinator.settings"])
    ]
    assert len(drawn[0].stdout) > 10_000
    assert drawn[0].stdout == drawn[1].stdout
