"""The commands of docs/how-to/runbooks.md, typed as they stand by the programs that the playbooks install."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.pki.issued_certificates import Index, write_index
from tests.hosts.plays import ROLES, by_ansible, fleet_of, played
from tests.support.brokers import Mosquitto
from tests.support.paths import ROOT
from tests.support.runbooks import COMMANDS, ENDLESS, WITHOUT_SERVICE
from tests.system.commands import Command
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600), by_ansible]

# One of each program, and of each kind of settings, in each CI run.
QUICK = {"fedpatch doctor", "fedpatch-agent doctor", "fedpatch ca show", "fedpatch devices drain DEVICE"}
VALUES = {"DEVICE": "bob", "TEXT": "broken"}


class Host:
    """A host that is coordinator and device, with its programs and state directories in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dirs = {name: folder / "state" / name for name in ("coordinator", "agent")}

    def install(self, broker: str) -> None:
        """Write both settings, and the operator's commands by the template of the roles."""
        (self.folder / "opt" / "current").mkdir(parents=True)
        (self.folder / "opt" / "current" / "bin").symlink_to(ROOT / ".venv" / "bin")
        # identity.yml installs the CA's record, without its key and certificate.
        write_index(self.record(), Index(fleet="demo"))
        (self.folder / "etc").mkdir()
        (self.folder / "bin").mkdir()
        common = f'broker = "{broker}"\nfleet = "demo"\ntask = "digits"\n'
        (self.folder / "etc" / "coordinator.toml").write_text(f"{common}devices = 2\nmetrics = 'none'\n")
        (self.folder / "etc" / "agent.toml").write_text(f'{common}device_id = "ann"\ndata = "shard:0/2"\n')
        files = [str(ROLES / "fleet" / name / "main.yml") for name in ("defaults", "vars")]
        files += [str(ROLES / role / "vars" / "main.yml") for role in ("coordinator", "device_agent")]
        template = {
            "src": str(ROLES / "program" / "templates" / "command.sh.j2"),
            "dest": str(self.folder / "bin" / "{{ program_command.name }}"),
            "mode": "0755",
        }
        tasks: list[dict[str, Any]] = [
            {"ansible.builtin.template": template, "vars": {"program_command": f"{{{{ {role}_command }}}}"}}
            for role in ("coordinator", "device_agent")
        ]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        given = {f"fleet_{name}_dir": str(self.folder / at) for name, at in (("program", "opt"), ("config", "etc"))}
        given |= {"fleet_state_dir": str(self.folder / "state"), "fleet_user": user}
        play = {"hosts": "devices", "vars_files": files, "tasks": tasks}
        done = played(self.folder, fleet_of({"hub": {}}), play, "-e", json.dumps(given))
        assert done.returncode == 0, done.stdout + done.stderr

    def record(self) -> Path:
        """The folder of the CA's record in the state directory of the coordinator."""
        folder = self.state_dirs["coordinator"] / "ca"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def begin(self, line: str) -> subprocess.Popen[str]:
        """Type a line in the shell of an operator, in a folder of her own."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FEDPATCH_")}
        environment = {**ours, "HOME": str(home), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(["/bin/sh", "-c", f"exec {line}"], cwd=home, env=environment, **pipes)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host whose run has played a round and goes on."""
    host = Host(tmp_path_factory.mktemp("host"))
    with Mosquitto() as broker, Fleet(broker.url, host.folder / "agents") as fleet:
        host.install(broker.url)
        fleet.start("ann", "digits", "shard:0/2", options=["--state-dir", str(host.state_dirs["agent"])])
        fleet.start("bob", "digits", "shard:1/2")
        options = ["--config", host.folder / "etc" / "coordinator.toml", "--state-dir", host.state_dirs["coordinator"]]
        rounds = ["--rounds", 1_000_000, "--round-interval-s", 2, "--quorum", 0.5]
        with Command("fedpatch", "run", *options, *rounds) as run:
            run.wait(lambda: "round 2/" in run.err, "has played a round")
            yield host


def _line(written: str) -> Any:
    return pytest.param(written, marks=() if written in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("written", [_line(one) for one in COMMANDS if one not in WITHOUT_SERVICE | ENDLESS])
def test_command_of_the_runbooks_succeeds_as_it_stands(host, written):
    line = re.sub("|".join(VALUES), lambda match: VALUES[match[0]], written)
    with host.begin(line) as typed:
        out, _ = typed.communicate(timeout=120)
    assert typed.returncode == 0, out


@pytest.mark.slow
def test_watch_of_the_runbooks_finds_the_run_as_it_stands(host):
    with host.begin("fedpatch watch") as typed:
        try:
            assert typed.stdout is not None
            assert re.match(r"run \S+: digits, round ", typed.stdout.readline())
        finally:
            typed.kill()


def test_lists_of_the_page_name_its_commands():
    assert set(COMMANDS) >= WITHOUT_SERVICE | ENDLESS | QUICK
