"""The systemd units of agent, coordinator and relay, as systemd itself reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedpatch.cli
import fedpatch.device_agent.cli.main
import fedpatch.relay.cli
from fedpatch.device_agent.runtime.agent import FINISH_MODEL_S
from fedpatch.device_agent.runtime.training_supervisor import LAST_WORDS_TIMEOUT_S, STOP_TIMEOUT_S
from fedpatch.shared.app.systemd_unit import AGENT, COORDINATOR, RELAY, Unit, this_installation
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.client import DRAIN_S, GOODBYE_TIMEOUT_S
from fedpatch.shared.mqtt.reconnect import CONNACK_TIMEOUT_S
from tests.support.programs import Program

# As installed in /opt; systemd accepts the unit only if the programs that it names exist.
PLAIN = Unit(
    service=AGENT,
    user="fedpatch",
    config=Path("/etc/fedpatch/agent.toml"),
    state_dir=Path("/var/lib/fedpatch-agent"),
    program=("/bin/true",),
    needed=(Path("/opt/fedpatch"),),
    systemd=252,
)
IN_A_HOME = replace(PLAIN, needed=(Path("/home/ann/venv"),), state_dir=Path("/mnt/ssd/agent"))
UNITS = {
    "agent": PLAIN,
    "agent in a home": IN_A_HOME,
    "coordinator": replace(PLAIN, service=COORDINATOR),
    "coordinator in a home": replace(IN_A_HOME, service=COORDINATOR),
    "relay": replace(PLAIN, service=RELAY),
}
COMMANDS = [
    (AGENT, fedpatch.device_agent.cli.main.main, "run --config /etc/fedpatch/agent.toml"),
    (COORDINATOR, fedpatch.cli.main, "run --unless-done --keep-metrics --config /etc/fedpatch/coordinator.toml"),
    (RELAY, fedpatch.relay.cli.main, "run --config /etc/fedpatch/relay.toml"),
]


@pytest.fixture
def analyze():
    """`systemd-analyze`, which works without a running systemd."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (apt install systemd)")

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["systemd-analyze", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    return run


def _values(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("which", UNITS)
def test_systemd_understands_every_line(analyze, tmp_path, which):
    path = tmp_path / "fedpatch-one.service"
    path.write_text(UNITS[which].text())
    done = analyze("verify", path)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("which", ["agent", "coordinator", "relay"])
def test_the_service_is_well_confined(analyze, tmp_path, which):
    """The exposure level of systemd is at most 2.1 of 10 for the agent and 2.0 for the others, which systemd rates as OK."""
    path = tmp_path / "fedpatch-one.service"
    path.write_text(UNITS[which].text())
    done = analyze("security", "--offline=true", f"--threshold={21 if which == 'agent' else 20}", path)
    assert done.returncode == 0, done.stdout
    assert "OK" in done.stdout.splitlines()[-1]


def test_agent_may_ask_the_kernel_whether_the_clock_is_set(analyze, tmp_path):
    """Else a service would take an unset clock for the time of the owner's quiet hours."""
    path = tmp_path / "fedpatch-one.service"
    path.write_text(PLAIN.text())
    found = analyze("security", "--offline=true", path).stdout
    assert "@clock is included (e.g. adjtimex is allowed)" in found
    assert "@clock is not included" not in found


def test_agent_that_uses_up_each_of_its_time_limits_ends_before_systemd_kills_it():
    [given] = _values(PLAIN.text(), "TimeoutStopSec")
    goodbye_s = DRAIN_S + GOODBYE_TIMEOUT_S + CONNACK_TIMEOUT_S
    training_s = STOP_TIMEOUT_S + 2 * LAST_WORDS_TIMEOUT_S
    assert FINISH_MODEL_S + goodbye_s + training_s < float(given.removesuffix("s"))


@pytest.mark.parametrize(
    ("unit", "key", "values"),
    [
        (PLAIN, "ProtectHome", ["tmpfs"]),
        (PLAIN, "BindReadOnlyPaths", []),
        (IN_A_HOME, "ProtectHome", ["tmpfs"]),
        (IN_A_HOME, "BindReadOnlyPaths", ["/home/ann/venv"]),
        (PLAIN, "StateDirectory", ["fedpatch-agent"]),
        (PLAIN, "StateDirectoryMode", ["0710"]),
        (IN_A_HOME, "ReadWritePaths", ["/mnt/ssd/agent"]),
        (replace(PLAIN, systemd=252), "RestartSteps", []),
        (replace(PLAIN, systemd=257), "RestartSteps", ["6"]),
    ],
)
def test_unit_setting_follows_from_the_paths_and_the_version_of_systemd(unit, key, values):
    assert _values(unit.text(), key) == values


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "ann bob"},
        {"user": "root\nExecStartPre=/bin/sh"},
        {"config": Path("/etc/my agent.toml")},
        {"state_dir": Path("/var/lib/%n")},
        {"state_dir": Path("/var/lib/../../etc")},
        {"needed": (Path("/home/x y/venv"),)},
    ],
    ids=str,
)
def test_impossible_unit_value_raises_usage_error(changes):
    with pytest.raises(UsageError, match="use "):
        replace(PLAIN, **changes).text()


@pytest.mark.parametrize(("service", "main", "runs"), COMMANDS, ids=["agent", "coordinator", "relay"])
def test_the_command_prints_the_unit_of_this_installation(monkeypatch, capsys, service, main, runs):
    ended = Program(main, monkeypatch, capsys)("unit", "--user", "pi", "--state-dir", "/var/lib/x")
    assert (ended.code, ended.err) == (0, "")
    program, _ = this_installation(service)
    assert Path(program[0]).parent == Path(sys.executable).parent
    assert _values(ended.out, "ExecStart") == [f"{' '.join(program)} {runs} --state-dir /var/lib/x"]
    assert _values(ended.out, "User") == ["pi"]
    assert not re.search(r"@[A-Z_]+@", ended.out)


@pytest.mark.parametrize("main", [main for _, main, _ in COMMANDS], ids=["agent", "coordinator", "relay"])
def test_the_command_refuses_what_the_unit_cannot_hold(monkeypatch, capsys, main):
    ended = Program(main, monkeypatch, capsys)("unit", "--user", "two words")
    assert (ended.code, ended.out) == (2, "")
    assert "two words" in ended.err
