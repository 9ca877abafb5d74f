"""The command line `fedpatch-agent`: run the agent of this device, and print its state.

stdout gets results only (with `--json` a single JSON document), stderr everything else.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpatch.device_agent.cli.bus import add_bus
from fedpatch.device_agent.cli.conditions import ConditionsRoot, add_conditions
from fedpatch.device_agent.cli.enrol import add_enrol
from fedpatch.device_agent.cli.models import DEFAULT_STATE_DIR, StateDir, add_models, models_in_words, models_plain
from fedpatch.device_agent.cli.new_task.new_task import register as add_new_task
from fedpatch.device_agent.policy.privacy_budget import privacy_in_words
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.patch_store import PatchEntry
from fedpatch.device_agent.state.status_file import STARTING, AgentStatus, read_patches, read_standing
from fedpatch.shared.app.command import AsJson, command, make_app, run_app
from fedpatch.shared.app.formatting import age, size
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.app.unit_command import add_unit
from fedpatch.shared.config.load import cli_options
from fedpatch.shared.task_checks.command import add_check_task

NAME = "fedpatch-agent"

app = make_app(
    NAME,
    "The agent of one device: it trains with data and a patch that never leave the device.",
    panels={
        "Set a device up": ["new-task", "check-task", "enrol", "unit"],
        "Serve a fleet": ["doctor", "run", "status", "conditions", "bus"],
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

    The agent reconnects by itself. It works when the owner's preferences are met, or as --admission says.
    """
    from fedpatch.device_agent.runtime.own_memory import hide_memory
    from fedpatch.device_agent.runtime.startup import run_agent

    hide_memory()
    raise typer.Exit(run_agent(settings, until_stdin_closes=until_stdin_closes, root=root, fork_server=fork_server))


@command(app, "doctor", example="fedpatch-agent doctor --config agent.toml")
@cli_options(AgentSettings)
def doctor(settings: AgentSettings, as_json: AsJson = False) -> None:
    """Check a device: installation, task and data, disk, memory, clock, broker, coordinator; print remedies.

    Exit code 1: a check failed. Beside a running agent the task is not loaded again.
    """
    from fedpatch.device_agent.cli.doctor import examine
    from fedpatch.shared.diagnostics.checks import conduct

    with interruptible():
        raise typer.Exit(conduct(lambda checkup: examine(settings, checkup), as_json=as_json))


add_conditions(app)


@command(app, "status", example="fedpatch-agent status --state-dir /var/lib/fedpatch-agent")
def status(state_dir: StateDir = DEFAULT_STATE_DIR, as_json: AsJson = False) -> None:
    """Print the agent's status from its state directory; exit code 1 if no agent runs.

    In the JSON, state is starting until the task is loaded, declines is the reason to decline every request, and
    held_version is the digest of the held model.
    """
    standing = read_standing(state_dir.expanduser())
    if as_json:
        typer.echo(json.dumps({**_plain(standing), "models": models_plain(state_dir)}))
    else:
        for line in [*_in_words(standing, time.time()), *models_in_words(state_dir)]:
            typer.echo(line)
    if not standing.running:
        raise typer.Exit(1)


@command(app, "patches", example="fedpatch-agent patches --json")
def patches(state_dir: StateDir = DEFAULT_STATE_DIR, as_json: AsJson = False) -> None:
    """List the private patches of this device: task, policy, size, round."""
    entries = read_patches(state_dir.expanduser())
    if as_json:
        typer.echo(json.dumps([_plain_patch(entry) for entry in entries]))
    else:
        for line in _patches_in_words(entries, time.time()) or [f"no patches yet in {state_dir.expanduser()}"]:
            typer.echo(line)


add_bus(app)
add_enrol(app)
add_models(app)
add_new_task(app)
add_check_task(app, NAME)
add_unit(
    app, NAME, "agent", "Print the systemd unit that runs this installation's agent as a watched and confined service."
)


def _plain(standing: AgentStatus) -> dict[str, object]:
    """The standing for JSON; paths as text."""
    entries = [_plain_patch(entry) for entry in standing.patches]
    known = {"running": standing.running, **standing.status}
    held = standing.held_version or None
    return {**known, "update_waits": standing.update_waits, "held_version": held, "patches": entries}


def _plain_patch(entry: PatchEntry) -> dict[str, object]:
    return {**asdict(entry), "path": str(entry.path)}


def _in_words(standing: AgentStatus, now: float) -> list[str]:
    status = standing.status
    name = f"{status['device_id']} of fleet {status['fleet']}" if standing.status else "the agent"
    if not standing.running:
        lines = [f"{name} is not running"]
    elif not status:
        lines = [f"{name} is starting"]
    else:
        since = age(max(0.0, now - float(status.get("since", now))))
        link = "connected to" if status.get("connected") else "not connected to"
        lines = [f"{name} is running (process {status.get('pid')}), {link} {status.get('broker')}"]
        job = f", run {status['run']}, round {status['round']}" if status.get("run") else ""
        paused = ", paused" if status.get("paused") else ""
        lines.append(f"it is {status.get('state')}{paused}{job} (last change: {since})")
        lines += _answer_in_words(status)
    if standing.running and status.get("problem"):
        lines.append(f"problem: {status['problem']}")
    if status.get("private"):
        lines.append(f"private: {status['private']['words']}")
    if status.get("network_open"):
        lines.append(f"network: the task's code can open connections, since {status['network_open']}")
    lines += privacy_in_words(status.get("privacy", {}))
    for task in status.get("tasks", ()):
        lines.append(f"task {task['task']}: {task['num_examples']} training examples")
    if status.get("last_outcome"):
        lines.append(f"last round: {status['last_outcome']}")
    waits = "waits to be taken by the coordinator" if standing.update_waits else "none waits"
    if standing.held_version:
        lines.append(f"global model: version {standing.held_version[:12]} is held, which the next steps may begin from")
    return [*lines, f"update: {waits}", *(_patches_in_words(standing.patches, now) or ["patches: none yet"])]


def _answer_in_words(status: Mapping[str, Any]) -> list[str]:
    """Return the lines on the answer that a work request would get now."""
    if status.get("state") == STARTING:
        return ["it would not accept work now: its task is still being loaded"]
    if status.get("declines"):
        return ["it would not accept work now: every request is declined, for what is named below"]
    return _willingness_in_words(status.get("admission", ""), status.get("unwilling", ()))


def _willingness_in_words(admission: str, unwilling: Sequence[str]) -> list[str]:
    match admission:
        case "preferences":
            missed = ["it would not accept work now:", *(f"  {words}" for words in unwilling)]
            return missed if unwilling else ["it would accept work now: all that its owner demands is met"]
        case "always":
            return ["it would accept work now: its owner set admission to always"]
        case "never":
            return ["it would not accept work now: its owner set admission to never"]
    return [f"whether it would accept work now, its owner's {admission} says"] if admission else []


def _patch_remedy(path: Path) -> str:
    from fedpatch.device_agent.state.patch_store import patch_problem, patch_remedy

    return patch_remedy(path) if patch_problem(path) else "the next round uses the one before it"


def _patches_in_words(entries: Sequence[PatchEntry], now: float) -> list[str]:
    lines = []
    for entry in entries:
        if entry.problem:
            lines.append(f"patch {entry.problem}; {_patch_remedy(entry.path)}")
            continue
        when = age(max(0.0, now - entry.modified_s))
        lines.append(
            f"patch {entry.task}, private {entry.policy}: {size(entry.size_bytes)}, "
            f"of round {entry.round} of run {entry.run}, saved {when}, {entry.path}"
        )
    return lines
