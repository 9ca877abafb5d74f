"""A run over a broker with a message limit below the configured chunk size."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto
from tests.system.commands import Command

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

DEVICES = 2


def test_message_limit_below_chunk_kib_costs_no_round(tmp_path: Path):
    """Models and updates in fp32 exceed the limit and are sent in smaller chunks; the log names the broker's setting."""
    with Mosquitto("message_size_limit 20000") as broker, ExitStack() as stack:
        options = ["--state-dir", tmp_path / "coordinator", "--devices", DEVICES, "--rounds", 1, "--wait-s", 100]
        options += ["--encoding", "fp32", "--grace-s", 100, "--recruit-deadline-s", 100, "--quorum", 1]
        coordinator = stack.enter_context(Command("fedpatch", "run", "--broker", broker.url, "--json", *options))
        for index in range(DEVICES):
            where = ["--broker", broker.url, "--device-id", f"pi-{index}", "--state-dir", tmp_path / f"pi-{index}"]
            what = ["--data", f"shard:{index}/10", "--admission", "always"]
            stack.enter_context(Command("fedpatch-agent", "run", *where, *what))
        done = coordinator.done()
        assert done.code == 0, done.err
    (record,) = done.document["rounds"]
    assert (record["outcome"], record["reported"]) == ("aggregated", DEVICES)
    assert record["bytes_up"] > 20_000 * DEVICES
    assert "message_size_limit" in done.err
