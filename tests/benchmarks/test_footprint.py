"""benchmarks.footprint on a small task: it still measures, and a device still has room for what it finds."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks import footprint
from tests.programs import Program

MB = 1e6


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.system
@pytest.mark.timeout(600)
def test_an_agent_is_small_and_quiet(monkeypatch, capsys, tmp_path):
    """Idle below 60 MB; after the rounds only the agent is left, and it writes nothing. Digits come with scikit-learn."""
    if shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") is None:
        pytest.skip("mosquitto is not installed (apt install mosquitto)")
    out = tmp_path / "new" / "footprint.json"
    program = Program(footprint.main, monkeypatch, capsys)
    ended = program("--task", "digits", "--data", "shard:0/10", "--rounds", 2, "--quiet-s", 2, "--json", "--out", out)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert json.loads(out.read_text("utf-8")) == document
    states = document["states"]
    assert [("training" in one) for one in states] == [True, True, True, False]
    assert all(20 * MB < one["agent"]["rss_bytes"] < 60 * MB for one in states)
    assert all(100 * MB < one["training"]["rss_bytes"] < 500 * MB for one in states[:-1])
    assert document["quiet"]["bytes_written"] == 0
