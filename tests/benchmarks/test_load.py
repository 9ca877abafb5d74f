"""network.load and network.load_virtual at toy size: real and simulated sessions, and no device is lost."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.network import load, load_virtual
from benchmarks.network.shipped_broker import shipped_limits
from fedpatch.shared.app.command import run_app
from fedpatch.simulator.fleet.settings import FleetTerms
from tests.support.programs import Program

ROUNDS, DEVICES = 2, 20


@pytest.mark.broker
@pytest.mark.system
@pytest.mark.timeout(900)
def test_nobody_is_lost(monkeypatch, capsys, tmp_path):
    """With whole values and with differences, all devices report in all rounds; the cost of both is reported."""
    if shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") is None:
        pytest.skip("mosquitto is not installed (apt install mosquitto)")
    out = tmp_path / "new" / "load.json"
    program = Program(lambda: run_app(load.app, "load"), monkeypatch, capsys)
    ended = program("--toy", "--json", "--out", out)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert json.loads(out.read_text("utf-8")) == document
    whole, steps = document["variants"]
    for one in (whole, steps):
        assert (one["lost"], one["failed_rounds"], one["reported"]) == (0, 0, ROUNDS * DEVICES)
        assert one["outcomes"] == {"committed": ROUNDS * DEVICES}
        assert one["coordinator_cpu_s"] > 0
        assert 0 < one["broker_peak_bytes"] < one["coordinator_peak_bytes"]
    assert steps["bytes_up"] < whole["bytes_up"] / 2


def test_the_broker_has_the_limits_that_we_ship():
    """The limits bound the messages that wait for a client, and the memory of the broker."""
    limits = shipped_limits()
    assert limits["max_queued_messages"] == "5000"
    assert {"memory_limit", "max_queued_bytes", "max_packet_size", "set_tcp_nodelay"} <= limits.keys()


def test_a_variant_that_cannot_be_read_is_an_error(monkeypatch, capsys):
    """A word without a value is named, with an example."""
    ended = Program(lambda: run_app(load.app, "load"), monkeypatch, capsys)("--variant", "encoding")
    assert ended.code == 2
    assert "'encoding' is not NAME=VALUE" in ended.err


def test_fleets_in_simulated_time_are_measured(monkeypatch, capsys, tmp_path):
    """Each fleet size with each model size is measured in a process of its own."""
    out = tmp_path / "virtual.json"
    ended = Program(lambda: run_app(load_virtual.app, "load_virtual"), monkeypatch, capsys)(
        "--toy", "--json", "--out", out
    )
    assert ended.code == 0, ended.err
    fleets = json.loads(ended.out)["fleets"]
    assert json.loads(out.read_text("utf-8")) == json.loads(ended.out)
    assert [(one["devices"], one["size_bytes"]) for one in fleets] == [
        (count, size) for size in load_virtual.SIZES for count in (20, 40)
    ]
    assert all(one["reported"] > 0 and one["us_per_event"] > 0 for one in fleets)


def test_hub_of_virtual_sites_waits_for_the_rounds_of_its_sites():
    terms = FleetTerms(devices=20, rounds=2, participation=1.0, quorum=1.0)
    found = load_virtual.measure_sites(terms, 3)
    assert (found["devices"], found["reported"], found["site"]["devices"]) == (3, 3, 20)
    assert found["virtual_s"] > found["site"]["virtual_s"]
