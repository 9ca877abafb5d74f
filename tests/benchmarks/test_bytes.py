"""benchmarks.bytes at toy size: every encoding is still played, and its bytes are told beside the reference's."""

from __future__ import annotations

import json

import pytest

from benchmarks import bytes as byte_count
from tests.programs import Program


@pytest.fixture
def program(monkeypatch, capsys) -> Program:
    """`python -m benchmarks.bytes`."""
    return Program(byte_count.main, monkeypatch, capsys)


@pytest.mark.benchmarks
@pytest.mark.slow
def test_encodings_are_counted_beside_the_reference(program, tmp_path):
    """A run for each, fewer bytes with a delta encoding, and the curves as pictures; what is kept is not played again."""
    out = tmp_path / "bytes"
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
    assert {path.suffix for path in out.iterdir()} == {".json", ".png", ".svg"}
    again = program(*terms)
    assert again.code == 0, again.err
    assert again.out.count("\n") == 2 + len(runs)


def test_help_ends_with_an_example(program):
    """`--help` ends with a line that can be copied."""
    ended = program("--help")
    assert ended.code == 0
    assert "python -m benchmarks.bytes --out results/bytes" in " ".join(ended.out.replace("│", " ").split())
