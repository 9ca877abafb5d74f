"""scripts/mutants.py: the limits of a mutant, and the count of its result."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from scripts import mutants
from scripts.mutants import MAX_DATA_BYTES, SURVIVED, Mutant, report, run_mutmut


@pytest.mark.parametrize(
    ("exit_code", "killed", "survived"),
    [(1, 1, 0), (-signal.SIGXCPU, 1, 0), (-signal.SIGKILL, 1, 0), (-signal.SIGABRT, 1, 0), (SURVIVED, 0, 1)],
)
def test_mutant_that_a_limit_ends_counts_as_killed(exit_code, killed, survived):
    mutant = Mutant("x__mutmut_1", "room.file.function", "return 1 -> return 2", False, exit_code)
    text, done = report([mutant])
    assert f"{killed} killed" in text
    assert f"{survived} survived" in text
    assert done is (killed == 1)


@pytest.mark.medium
def test_mutmut_gets_no_memory_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = (
        f"bytearray({MAX_DATA_BYTES // 8}); print('little', flush=True); bytearray({MAX_DATA_BYTES}); print('much')"
    )
    monkeypatch.setattr(mutants, "MUTMUT", (sys.executable, "-c", script))
    run_mutmut(tmp_path, jobs=1)
    first, *_, last = (tmp_path / "mutmut.log").read_text().splitlines()
    assert (first, last) == ("little", "MemoryError")
