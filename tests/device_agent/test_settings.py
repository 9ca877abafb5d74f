"""The configuration that a device agent accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedpatch.device_agent.bus.settings import BusSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError

DATA = "shard:0/10"


def problems(environ=None, **flags) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(AgentSettings, file=None, environ=environ or {}, flags=flags)
    return list(caught.value.problems)


def test_data_is_the_only_required_setting():
    assert problems() == ['data: not set; say which data this device holds, e.g. data = "shard:0/10"']
    settings = load(AgentSettings, file=None, environ={}, flags={"data": DATA})
    assert settings == AgentSettings(data=DATA)
    assert (settings.device_id, settings.admission, settings.threads) == ("", "preferences", 1)


def test_variables_are_the_agents_own():
    environ = {"FEDPATCH_AGENT_DATA": DATA, "FEDPATCH_AGENT_STATE_DIR": "/var/lib/fedpatch", "FEDPATCH_DATA": "/data"}
    settings = load(AgentSettings, file=None, environ={**environ, "FEDPATCH_FLEET": "other"}, flags={})
    assert settings == AgentSettings(data=DATA, state_dir=Path("/var/lib/fedpatch"))


def test_settings_of_int8_models_are_warnings_and_no_fields(tmp_path, caplog):
    (tmp_path / "agent.toml").write_text(f'data = "{DATA}"\nkeep_int8 = true\n')
    assert load(AgentSettings, file=tmp_path / "agent.toml", environ={}, flags={}) == AgentSettings(data=DATA)
    load(BusSettings, file=None, environ={"FEDPATCH_BUS_INT8": "1"}, flags={})
    assert [record.getMessage().partition(", since")[0] for record in caplog.records] == [
        f"{tmp_path / 'agent.toml'}:2: keep_int8: has no effect",
        "$FEDPATCH_BUS_INT8: has no effect",
    ]


@pytest.mark.parametrize("device", ["pi-07", "0", "a_b", "a" * 32, ""])
def test_a_device_id_fits_a_topic(device):
    assert load(AgentSettings, file=None, environ={}, flags={"data": DATA, "device_id": device}).device_id == device


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device_id", "Pi 7"),
        ("device_id", "-pi"),
        ("device_id", "a" * 33),
        ("device_id", "pi/7"),
        ("admission", "sometimes"),
        ("admission", "file:"),
        ("threads", 0),
        ("reconnect_min_s", 0.0),
        ("broker", "tcp://broker"),
        ("task", "digts"),
        ("task", "my_tasks:"),
    ],
)
def test_a_value_that_cannot_be_is_refused(name, value):
    assert [one.split(":")[0] for one in problems(data=DATA, **{name: value})] == [f"--{name.replace('_', '-')}"]


def test_the_longest_pause_is_not_below_the_shortest():
    assert problems(reconnect_min_s=100)[1:] == ["reconnect_max_s: 60 is below reconnect_min_s = 100; make it larger"]


def test_every_setting_has_help():
    for one in settings_of(AgentSettings):
        assert re.fullmatch(r"[A-Z].*\.", one.rules.help), one.name
        assert not one.name.endswith("_s") or one.rules.unit == "seconds"


def test_a_task_of_ones_own_is_not_imported_here(tmp_path, monkeypatch):
    """The process with the network connection loads no task; the training process reports whether the task can be loaded."""
    (tmp_path / "explosive.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    settings = load(AgentSettings, file=None, environ={}, flags={"data": DATA, "task": "explosive:TASK"})
    assert settings.task == "explosive:TASK"


def test_setting_bound_to_fail_later_is_refused_at_start():
    """A file that node_exporter ignores, and a limit below torch's own memory before any training."""
    assert problems(data=DATA, metrics_textfile="/var/lib/agent.txt") == [
        "--metrics-textfile: /var/lib/agent.txt: node_exporter reads only files whose names end in .prom; "
        "give it such a name"
    ]
    (problem,) = problems(data=DATA, max_memory_mib=10)
    assert problem.startswith("--max-memory-mib: torch itself takes more than 10; at least ")
    assert load(AgentSettings, file=None, environ={}, flags={"data": DATA, "max_memory_mib": 0}).max_memory_mib == 0
