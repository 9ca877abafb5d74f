"""The words and the JSON of `fedpatch-agent status` and `patches`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpatch.device_agent.policy.objections import PAUSED_WORDS, besides_pause
from fedpatch.device_agent.policy.privacy_budget import account_state, privacy_in_words
from fedpatch.device_agent.policy.usage import SPENT_WORDS, Usage
from fedpatch.device_agent.runtime.settings_in_force import PREFERENCES, changes
from fedpatch.device_agent.sensors.host import PAUSE_FILE, read_pause
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.history import DECLINED, HistoryEntry, read_history
from fedpatch.device_agent.state.patch_store import PatchEntry
from fedpatch.device_agent.state.status_file import STARTING, AgentStatus
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.app.formatting import age, minute, size
from fedpatch.shared.config.load import load, public_values
from fedpatch.shared.errors import ConfigError


def standing_plain(standing: AgentStatus) -> dict[str, object]:
    """The standing for JSON; paths as text."""
    entries = [plain_patch(entry) for entry in standing.patches]
    known = {"running": standing.running, **standing.status}
    held = standing.held_version or None
    return {**known, "update_waits": standing.update_waits, "held_version": held, "patches": entries}


def plain_patch(entry: PatchEntry) -> dict[str, object]:
    """Return a patch for JSON."""
    return {**asdict(entry), "path": str(entry.path)}


@dataclass(frozen=True)
class OwnersView:
    """Facts for the owner that are not in status.json.

    Attributes:
        pause: The pause in words, "" for none.
        last_decline: The last decline in the history; None for none.
        differences: Settings of the file that are not in force.
        account: State of the account of privacy, as of `account_state`.
        account_problem: Its problem and the remedy, "" for none, or if the agent tells of it.
    """

    pause: str = ""
    last_decline: HistoryEntry | None = None
    differences: tuple[str, ...] = ()
    account: str = "ok"
    account_problem: str = ""

    @property
    def lines(self) -> list[str]:
        """The facts in words."""
        lines = [f"pause: {self.pause}"] if self.pause else []
        if self.last_decline is not None:
            lines.append(f"last decline: {entry_in_words(self.last_decline)}")
        if self.account_problem:
            lines.append(f"privacy: {self.account_problem}")
        return [*lines, *(f"settings: {words}" for words in self.differences)]

    def plain(self) -> dict[str, object]:
        """The facts for JSON."""
        declined = None if self.last_decline is None else asdict(self.last_decline)
        return {
            "pause": self.pause,
            "last_decline": declined,
            "settings_not_in_force": list(self.differences),
            "privacy_account": self.account,
        }


def look_for_owner(state_dir: Path, standing: AgentStatus) -> OwnersView:
    """Read the pause, the last decline and the settings file. StateError where the state cannot be read."""
    with refusals_of(state_dir):
        pause = read_pause(state_dir / PAUSE_FILE)
    declined = [one for one in read_history(state_dir) if one.what == DECLINED]
    differences = differences_of(standing.status.get("settings") or {}) if standing.running else []
    account, problem = account_state(state_dir)
    tells = standing.running and (standing.status.get("privacy") or {}).get("problem")
    return OwnersView(
        pause.source if pause.value else "",
        declined[-1] if declined else None,
        tuple(differences),
        account,
        "" if tells else problem,
    )


def differences_of(settings: Mapping[str, Any]) -> list[str]:
    """Return how the settings file differs from the settings of the running agent, and the remedy.

    Args:
        settings: Description of the settings in status.json.
    """
    file, values = settings.get("file"), settings.get("values", {})
    if not file:
        return []
    flags = {name: values.get(name) for name in settings.get("overridden", ())}
    try:
        now = load(AgentSettings, file=Path(file), environ={}, flags=flags)
    except ConfigError as error:
        return [f"{problem}; the running agent follows the former settings" for problem in error.problems]
    return in_force_in_words(file, settings, now)


def in_force_in_words(file: str, running: Mapping[str, Any], settings: AgentSettings) -> list[str]:
    """Return the settings that differ from those of the running agent, with the remedy.

    The state directory is left out: it is the same, though its name may differ.

    Args:
        file: Name of the settings file.
        running: Description of the settings in status.json.
    """
    lines, overridden = [], running.get("overridden", ())
    for name, (before, after) in sorted(changes(running.get("values", {}), public_values(settings)).items()):
        if name == "state_dir":
            continue
        remedy = "systemctl reload fedpatch-agent" if name in PREFERENCES else "restart the agent"
        if name in overridden:
            remedy = "an option or a variable of the running agent sets it"
        lines.append(f"{name} is {_shown(before)} in the running agent and {_shown(after)} in {file}; {remedy}")
    return lines


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)


def entry_in_words(entry: HistoryEntry) -> str:
    """Return one line of the history."""
    about = f", round {entry.round} of run {entry.run}" if entry.run else ""
    moved = f", sent {size(entry.sent_bytes)}, received {size(entry.received_bytes)}, {entry.broker}"
    model = f", global model {entry.model[:12]}" if entry.model else ""
    repeats = f", {entry.repeats} alike before" if entry.repeats else ""
    return f"{minute(entry.at)} {entry.what}{about}: {entry.words}{model}{moved}{repeats}"


def _spent_in_words(status: Mapping[str, Any]) -> list[str]:
    """Return the usage of the day, beside the allowance."""
    spent, limits = status.get("spent"), (status.get("settings") or {}).get("values", {})
    if not spent:
        return []

    if Usage(**spent).counts_as_spent:
        return [f"today: {SPENT_WORDS}"]

    def of(value: float, name: str, unit: str) -> str:
        most = limits.get(name)
        return f"{value:.4g} {unit}" if most is None or most == "none" else f"{value:.4g} of {most} {unit}"

    parts = (
        of(spent["rounds"], "max_rounds_per_day", "rounds"),
        of(spent["traffic_bytes"] / 2**20, "max_mib_per_day", "MiB"),
        of(spent["training_s"] / 60.0, "max_minutes_per_day", "minutes"),
    )
    return [f"today: {', '.join(parts)}"]


def standing_in_words(standing: AgentStatus, about: OwnersView, now: float) -> list[str]:
    """Return the status in lines for people.

    Args:
        now: Unix seconds.
    """
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
        lines += _answer_in_words(status, unwilling_now(status, about.pause))
    if standing.running and status.get("problem"):
        lines.append(f"problem: {status['problem']}")
    lines += [*about.lines, *_spent_in_words(status)]
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
    return [*lines, f"update: {waits}", *(patches_in_words(standing.patches, now) or ["patches: none yet"])]


def unwilling_now(status: Mapping[str, Any], pause: str) -> list[str]:
    """Return the unmet preferences, with the pause as it is now.

    Args:
        status: Content of status.json.
        pause: The present pause in words, "" for none.
    """
    known = besides_pause(status.get("unwilling", ()))
    return [PAUSED_WORDS, *known] if pause else known


def _answer_in_words(status: Mapping[str, Any], unwilling: Sequence[str]) -> list[str]:
    """Return the lines on the answer that a work request would get now."""
    if status.get("state") == STARTING:
        return ["it would not accept work now: its task is still being loaded"]
    if status.get("declines"):
        return ["it would not accept work now: every request is declined, for what is named below"]
    if refused := status.get("refused"):
        return [f"it would not accept work now: a request like the last one is declined: {refused}"]
    if unwilling:
        return ["it would not accept work now:", *(f"  {words}" for words in unwilling)]
    return [*_mode_in_words(status.get("admission", "")), *(f"  {words}" for words in status.get("terms", ()))]


def _mode_in_words(admission: str) -> list[str]:
    match admission:
        case "preferences":
            return ["it would accept work now: all that its owner demands is met"]
        case "always":
            return ["it would accept work now: its owner set admission to always"]
        case "never":
            return ["it would not accept work now: its owner set admission to never"]
    return _file_in_words(admission) if admission else []


def _file_in_words(admission: str) -> list[str]:
    """Return the answer by the owner's file, which counts at each request."""
    from fedpatch.device_agent.policy.admission_file import text_of
    from fedpatch.device_agent.policy.admission_mode import decide, parse_admission_mode

    order = parse_admission_mode(admission)
    # A relative path is in the working directory of the agent, which is not known here.
    if not order.path.startswith("/") or _is_closed(order.path):
        return [f"whether it would accept work now, its owner's {admission} says"]
    verdict = decide(order, text_of(order, warn=False))
    if verdict.accept:
        return [f"it would accept work now: {order.path} says accept"]
    return [f"it would not accept work now: {verdict.why} ({order.path})"]


def _is_closed(path: str) -> bool:
    """Return whether this user has no right to read a file, which the agent may have."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return not os.access(path, os.R_OK, effective_ids=True)


def _patch_remedy(path: Path) -> str:
    from fedpatch.device_agent.state.patch_store import patch_problem, patch_remedy

    return patch_remedy(path) if patch_problem(path) else "the next round uses the one before it"


def patches_in_words(entries: Sequence[PatchEntry], now: float) -> list[str]:
    """Return a line for each patch; a damaged one with its remedy."""
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
