"""Plain MQTT to another machine: refused without the option, on every side, and then logged at each start."""

from __future__ import annotations

import pytest

import fedpatch.cli
import fedpatch.device_agent.cli.main
from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings, exposure
from fedpatch.shared.mqtt.url import parse_broker_url
from tests.support.programs import Program

SIDES = [(RunSettings, {}), (AgentSettings, {"data": "shard:0/2"}), (BrokerSettings, {})]
EXPOSED, LOCAL, SECURED = "mqtt://10.1.2.3", "mqtt://localhost:1883", "mqtts://broker.lan"


@pytest.mark.parametrize(("settings", "needed"), SIDES)
def test_plain_mqtt_to_another_machine_takes_a_word(settings, needed):
    with pytest.raises(ConfigError) as caught:
        load(settings, file=None, environ={}, flags={**needed, "broker": EXPOSED})
    (problem,) = caught.value.problems
    assert problem.startswith("--broker: ") and "mqtts://" in problem and "--insecure" in problem
    flags = {**needed, "broker": EXPOSED, "insecure": True}
    assert load(settings, file=None, environ={}, flags=flags).broker == EXPOSED


@pytest.mark.parametrize(("settings", "needed"), SIDES)
@pytest.mark.parametrize("broker", [LOCAL, SECURED, "mqtt://127.0.0.1", "broker.lan"])
def test_nothing_is_asked_for_on_this_machine_and_with_tls(settings, needed, broker):
    assert not load(settings, file=None, environ={}, flags={**needed, "broker": broker}).insecure


def test_a_demo_never_talks_to_another_machine_in_plain_text():
    with pytest.raises(ConfigError, match="write mqtts://"):
        load(DemoSettings, file=None, environ={}, flags={"broker": EXPOSED})


def test_warning_at_the_start_names_broker_and_danger():
    warning = exposure(parse_broker_url(EXPOSED))
    assert "10.1.2.3:1883" in warning and "passwords" in warning and "\n" not in warning
    assert [exposure(parse_broker_url(url)) for url in (LOCAL, SECURED)] == ["", ""]


RUN = ("run", "--broker", EXPOSED)
COMMANDS = [
    (fedpatch.cli.main, RUN),
    (fedpatch.cli.main, ("doctor", "--broker", EXPOSED)),
    (fedpatch.cli.main, ("watch", "--broker", EXPOSED, "--fleet", "home")),
    (fedpatch.device_agent.cli.main.main, (*RUN, "--data", "shard:0/2")),
    (fedpatch.device_agent.cli.main.main, ("doctor", "--broker", EXPOSED, "--data", "shard:0/2")),
]


@pytest.mark.parametrize(("main", "words"), COMMANDS)
def test_every_command_refuses_with_exit_code_2(main, words, monkeypatch, capsys):
    ended = Program(main, monkeypatch, capsys)(*words)
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1 and "--insecure" in ended.err
