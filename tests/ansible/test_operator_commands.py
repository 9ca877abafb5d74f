"""The commands that an operator types on the hosts, by the template that the roles install."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from tests.hosts.plays import ROLES, by_ansible, fleet_of, played, stub

COMMANDS = {"coordinator": "fedpatch", "device_agent": "fedpatch-agent", "relay": "fedpatch-relay"}


APPS = {"coordinator": "coordinator.cli.main", "device_agent": "device_agent.cli.main", "relay": "relay.cli"}


@pytest.mark.parametrize("role", COMMANDS)
def test_subcommands_that_the_command_treats_apart_exist_and_take_settings(role):
    command = yaml.safe_load((ROLES / role / "vars" / "main.yml").read_text("utf-8"))[f"{role}_command"]
    program: Any = typer.main.get_command(import_module(f"fedpatch.{APPS[role]}").app)
    context = program.make_context(command["name"], ["--help"], resilient_parsing=True)
    of_program = {name: program.get_command(context, name) for name in program.list_commands(context)}
    assert set(command["of_service"]) <= set(of_program)
    for name in command["with_settings"]:
        assert "--config" in {option for one in of_program[name].params for option in one.opts}, name


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of all roles."""
    folder: Path = tmp_path_factory.mktemp("commands")
    files = [str(ROLES / "fleet" / name / "main.yml") for name in ("defaults", "vars")]
    files += [str(ROLES / role / "vars" / "main.yml") for role in COMMANDS]
    template = str(ROLES / "program" / "templates" / "command.sh.j2")
    tasks: list[dict[str, Any]] = [
        {
            "ansible.builtin.template": {"src": template, "dest": str(folder / name), "mode": "0755"},
            "vars": {"program_command": f"{{{{ {role}_command }}}}"},
        }
        for role, name in COMMANDS.items()
    ]
    done = played(folder, fleet_of({"hub": {}}), {"hosts": "devices", "vars_files": files, "tasks": tasks})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _typed(folder: Path, tmp_path: Path, user: str, name: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """The result of a command that `user` types; sudo, runuser and env print what they would run."""
    for program in ("sudo", "runuser", "env"):
        stub(tmp_path / "bin" / program, f'echo {program} "$@"')
    stub(tmp_path / "bin" / "id", f"echo {user}")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    return subprocess.run(
        ["/bin/sh", folder / name, *argv], capture_output=True, text=True, env=environment, check=False
    )


@by_ansible
@pytest.mark.parametrize(
    ("user", "begin"),
    [("ann", "sudo -u fedpatch -- env "), ("root", "runuser -u fedpatch -- env "), ("fedpatch", "env ")],
)
def test_each_user_acts_as_the_service_with_its_state_directory(written, tmp_path, user, begin):
    done = _typed(written, tmp_path, user, "fedpatch", "show", "last", "--json")
    of_service = "FEDPATCH_STATE_DIR=/var/lib/fedpatch/coordinator /opt/fedpatch/current/bin/fedpatch"
    assert done.stdout == f"{begin}{of_service} show last --json\n", done.stderr


@by_ansible
@pytest.mark.parametrize(
    ("name", "subcommand", "variable", "directory", "config"),
    [
        ("fedpatch", "doctor", "FEDPATCH_STATE_DIR", "coordinator", "coordinator.toml"),
        ("fedpatch-agent", "doctor", "FEDPATCH_AGENT_STATE_DIR", "agent", "agent.toml"),
        ("fedpatch-agent", "conditions", "FEDPATCH_AGENT_STATE_DIR", "agent", "agent.toml"),
    ],
)
def test_subcommand_that_needs_the_settings_reads_those_of_the_service(
    written, tmp_path, name, subcommand, variable, directory, config
):
    done = _typed(written, tmp_path, "fedpatch", name, subcommand, "--json")
    program = f"{variable}=/var/lib/fedpatch/{directory} /opt/fedpatch/current/bin/{name}"
    assert done.stdout == f"env {program} {subcommand} --config /etc/fedpatch/{config} --json\n", done.stderr


@by_ansible
@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("fedpatch", ("resume", "last")),
        ("fedpatch", ("run",)),
        ("fedpatch-agent", ("run",)),
        ("fedpatch-relay", ("run",)),
    ],
)
def test_work_of_the_service_is_refused_with_the_command_that_starts_the_service(written, tmp_path, name, argv):
    """A second coordinator or agent beside the service would use its devices or its data."""
    done = _typed(written, tmp_path, "root", name, *argv)
    unit = {"fedpatch": "fedpatch-coordinator"}.get(name, name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"on this host the service does this: sudo systemctl restart {unit}\n")


@by_ansible
def test_command_without_arguments_shows_the_programs_help(written, tmp_path):
    done = _typed(written, tmp_path, "fedpatch", "fedpatch-relay")
    program = "FEDPATCH_RELAY_STATE_DIR=/var/lib/fedpatch/relay /opt/fedpatch/current/bin/fedpatch-relay"
    assert done.stdout == f"env {program}\n", done.stderr
