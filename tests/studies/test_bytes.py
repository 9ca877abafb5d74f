"""studies.bytes at toy size: every encoding is run, and its bytes are reported beside those of the reference."""

from __future__ import annotations

import json

import pytest

from fedpatch.shared.app.command import run_app
from studies.bytes import __main__ as byte_count
from tests.support.programs import Program

pytestmark = pytest.mark.benchmarks


def test_encodings_are_counted_beside_the_reference(monkeypatch, capsys, tmp_path):
    """Each encoding has a run, a delta encoding sends fewer bytes, curves are drawn, and kept runs are not repeated."""
    program, out = Program(lambda: run_app(byte_count.app, "bytes"), monkeypatch, capsys), tmp_path / "bytes"
    terms = (
        "--toy",
        "--workers",
        1,
        "--strategies",
        "fedavg-adam",
        "--encodings",
        "fp32+zstd,delta-int8",
        "--out",
        out,
    )
    ended = program(*terms, "--json")
    assert ended.code == 0, ended.err
    runs = json.loads(ended.out)["runs"]
    assert [run["encoding"] for run in runs] == ["fp32", "fp32+zstd", "delta-int8"]
    assert all(len(run["curve"]) == len(run["bytes_down"]) == len(run["bytes_up"]) + 1 for run in runs)
    assert runs[2]["bytes_up_per_update"] < runs[1]["bytes_up_per_update"] / 4
    assert {path.suffix for path in out.iterdir()} == {".jsonl", ".svg", ""}
    again = program(*terms)
    assert again.code == 0, again.err
    assert again.out.count("\n") == 2 + len(runs)
