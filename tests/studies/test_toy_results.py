"""Runs at toy size are kept apart from those of the full size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.documents import kept
from fedpatch.shared.errors import UsageError
from studies import masked_rounds as rounds
from studies.bytes import __main__ as byte_count
from studies.bytes.runs import Run, Setting


@pytest.mark.parametrize("toy", [False, True])
def test_masked_rounds_go_on_with_runs_of_their_own_size_only(tmp_path, toy):
    out = tmp_path / "rounds.json"
    kept(rounds._begun(out, 1, toy=toy), out)
    assert rounds._begun(out, 1, toy=toy)["runs"] == []
    with pytest.raises(UsageError, match="--toy; choose another --out"):
        rounds._begun(out, 1, toy=not toy)


def test_byte_counts_of_toy_size_are_runs_of_their_own(tmp_path, monkeypatch):
    files: list[str] = []

    def play(setting: Setting, *_: Any, saved: Path) -> Run:
        files.append(saved.name)
        return Run("fedavg", "none", "fp32", 0, 2, None, None, None, [], [], [], 0.0, "bytes", "0", setting.where)

    monkeypatch.setattr(byte_count, "play", play)
    for toy in (False, True):
        byte_count._kept(Setting(1, "bytes", toy=toy), "fedavg", "none", "fp32", 0, tmp_path)
    assert files == ["fedavg-none-fp32-seed0", "toy-fedavg-none-fp32-seed0"]
    assert [key[0] for key in byte_count.runs_in(tmp_path).keys] == ["mnist/W200/C1.0", "toy"]
