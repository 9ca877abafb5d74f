"""The command line `fedpatch-agent`: run the agent of this device, and print its state.

stdout gets results only (with `--json` a single JSON document), stderr everything else.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.device_agent.cli.backup import add_backup
from fedpatch.device_agent.cli.bus import add_bus
from fedpatch.device_agent.cli.conditions import ConditionsRoot, add_conditions
from fedpatch.device_agent.cli.enrol import add_enrol
from fedpatch.device_agent.cli.models import add_models, models_in_words, models_plain
from fedpatch.device_agent.cli.new_task.new_task import add_new_task
from fedpatch.device_agent.cli.pause_and_history import add_owner
from fedpatch.device_agent.cli.state_dir import in_place, settings_file, state_options
from fedpatch.device_agent.cli.status import (
    look_for_owner,
    patches_in_words,
    plain_patch,
    standing_in_words,
    standing_plain,
    unwilling_now,
)
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.lost_directory import loss_of
from fedpatch.device_agent.state.status_file import read_patches, read_standing
from fedpatch.shared.app.command import AsJson, command, make_app, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.app.unit_command import add_unit
from fedpatch.shared.config.load import Source, cli_options
from fedpatch.shared.errors import StateError
from fedpatch.shared.task_checks.command import add_check_task

NAME = "fedpatch-agent"

app = make_app(
    NAME,
    "The agent of one device: it trains with data and a patch that never leave the device.",
    panels={
        "Set a device up": ["new-task", "check-task", "enrol", "unit", "bus-unit"],
        "Serve a fleet": ["doctor", "run", "conditions", "bus"],
        "Own a device": ["status", "pause", "resume", "history", "backup", "restore", "remove"],
        "Look at patches and personal models, and use them": ["patches", "models", "predict", "evaluate", "rollback"],
    },
)


def main() -> None:
    """Entry point; ends the process."""
    run_app(app, NAME)


@command(
    app,
    "run",
    example="fedpatch-agent run --broker mqtts://broker.local --task digits --data shard:0/10",
    log_level=logging.INFO,
)
@cli_options(AgentSettings)
def run(
    settings: AgentSettings,
    source: Source[AgentSettings],
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", hidden=True, help="End when stdin is closed.")
    ] = False,
    root: ConditionsRoot = Path("/"),
    fork_server: Annotated[
        Path | None,
        typer.Option("--fork-server", hidden=True, help="Socket of a server that forks training processes."),
    ] = None,
) -> None:
    """Serve a fleet with this device's data until SIGTERM (exit code 0) or Ctrl-C (130).

    The agent reconnects by itself. It works when the owner's preferences are met, or as --admission says. SIGHUP reads
    the preferences again.
    """
    from fedpatch.device_agent.runtime.own_memory import hide_memory
    from fedpatch.device_agent.runtime.startup import run_agent

    hide_memory()
    raise typer.Exit(
        run_agent(settings, until_stdin_closes=until_stdin_closes, root=root, fork_server=fork_server, source=source)
    )


@command(app, "doctor", example="fedpatch-agent doctor --config agent.toml")
@cli_options(AgentSettings, find_file=settings_file)
def doctor(settings: AgentSettings, source: Source[AgentSettings], as_json: AsJson = False) -> None:
    """Check a device: installation, task and data, disk, memory, clock, broker, coordinator; print remedies.

    Exit code 1: a check failed. Beside a running agent the task is not loaded again.
    """
    from fedpatch.device_agent.cli.doctor import examine
    from fedpatch.shared.diagnostics.checks import conduct

    placed = in_place(settings, source)
    with interruptible():
        raise typer.Exit(conduct(lambda checkup: examine(placed, checkup), as_json=as_json))


add_conditions(app)


@command(app, "status", example="fedpatch-agent status --state-dir /var/lib/fedpatch-agent")
@state_options
def status(*, state_dir: Path, as_json: AsJson = False) -> None:
    """Print the agent's status from its state directory; exit code 1 if no agent runs.

    In the JSON, state is starting until the task is loaded, declines is the reason to decline every request,
    held_version is the digest of the held model, and privacy_account is ok, restored (from a backup), damaged or
    unreadable.
    """
    if (lost := loss_of(state_dir)) is not None:
        raise StateError("; ".join(lost))
    standing = read_standing(state_dir)
    about = look_for_owner(state_dir, standing)
    if as_json:
        now = {"unwilling": unwilling_now(standing.status, about.pause)} if standing.status else {}
        typer.echo(json.dumps({**standing_plain(standing), **now, **about.plain(), "models": models_plain(state_dir)}))
    else:
        for line in [*standing_in_words(standing, about, time.time()), *models_in_words(state_dir)]:
            typer.echo(line)
    if not standing.running:
        raise typer.Exit(1)


@command(app, "patches", example="fedpatch-agent patches --json")
@state_options
def patches(*, state_dir: Path, as_json: AsJson = False) -> None:
    """List the private patches of this device: task, policy, size, round."""
    entries = read_patches(state_dir)
    if as_json:
        typer.echo(json.dumps([plain_patch(entry) for entry in entries]))
    else:
        for line in patches_in_words(entries, time.time()) or [f"no patches yet in {state_dir}"]:
            typer.echo(line)


add_bus(app)
add_owner(app)
add_backup(app)
add_enrol(app)
add_models(app)
add_new_task(app)
add_check_task(app, NAME)
add_unit(
    app, NAME, "agent", "Print the systemd unit that runs this installation's agent as a watched and confined service."
)
add_unit(
    app,
    NAME,
    "bus",
    "Print the systemd unit that runs `fedpatch-agent bus` of this installation.",
    name="bus-unit",
    state_of="agent",
)
