"""A device without any file of the operator's: it asks with a word, is approved, and connects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.brokers import HOST, Mosquitto
from tests.support.identities import Certified, url_of
from tests.system.commands import Command, run
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.broker]

FLEET = "kitchen"


def well(program: str, *arguments: object) -> str:
    """Run a command that must succeed; return its standard output."""
    done = run(program, *arguments)
    assert done.code == 0, done.err
    return done.out


def address_of(server: Command) -> str:
    server.wait_err("devices can ask at ")
    return server.err.partition("devices can ask at ")[2].partition(";")[0]


def test_device_that_was_killed_while_it_waited_enrols_by_its_word_and_connects(tmp_path: Path):
    ca = ("--ca-dir", tmp_path / "ca")
    well("fedpatch", "ca", "init", "--fleet", FLEET, "--broker-name", HOST, *ca)
    with Mosquitto(Certified(tmp_path / "ca", FLEET).options) as broker:
        word = well("fedpatch", "device", "invite", "ann", "--broker", url_of(broker), *ca).strip()
        with Command("fedpatch", "ca", "serve", "--listen", "127.0.0.1:0", *ca) as server:
            config, state_dir = tmp_path / "ann.toml", tmp_path / "ann"
            words = ("enrol", "--from", address_of(server), "--word", word)
            places = ("--config", config, "--state-dir", state_dir)
            with Command("fedpatch-agent", *words, *places) as asking:
                server.wait_err("ann asks from 127.0.0.1")
                asking.wait_err("waiting for the operator's approval")
                [request] = json.loads(well("fedpatch", "device", "requests", "--json", *ca))
                assert request["state"] == "asks" and f"the code of this request is {request['code']}" in asking.err
                asking.kill()
            well("fedpatch", "device", "approve", "ann", *ca)
            assert "this device is ann of fleet kitchen" in well("fedpatch-agent", *words, *places)
            ended = server.terminate()
        assert ended.code == 0 and "no device can ask any more" in ended.err
        with Fleet(url_of(broker), tmp_path, name=FLEET) as fleet:
            agent = fleet.start("ann", "digits", "shard:0/2", options=["--config", str(config)])
            agent.wait(lambda: agent.status.get("connected"), "is connected")
