"""studies.masked_rounds at toy size."""

from __future__ import annotations

import json

import pytest

from fedpatch.shared.app.command import run_app
from studies import masked_rounds
from tests.support.programs import Program

pytestmark = pytest.mark.benchmarks


def test_each_variant_is_run_and_compared(monkeypatch, capsys, tmp_path):
    program, out = (
        Program(lambda: run_app(masked_rounds.app, "masked_rounds"), monkeypatch, capsys),
        tmp_path / "new.json",
    )
    ended = program("--toy", "--json", "--out", out)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert [run["variant"] for run in document["runs"]] == list(masked_rounds.VARIANTS)
    assert json.loads(out.read_text("utf-8")) == document
