"""The page cli.md: all commands, from their help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import typer
from typer.main import get_command

import fedpatch.cli
import fedpatch.device_agent.cli.main
import fedpatch.relay.cli
from fedpatch.shared.config.fields import Settings, settings_of
from scripts.reference.configuration import COMMANDS as COMMANDS_OF_SETTINGS
from scripts.reference.configuration import TITLES
from scripts.reference.markdown import render

PROGRAMS: Mapping[str, typer.Typer] = {
    "fedpatch": fedpatch.cli.app,
    "fedpatch-agent": fedpatch.device_agent.cli.main.app,
    "fedpatch-relay": fedpatch.relay.cli.app,
}

GUIDES: Mapping[str, str] = {
    "fedpatch run": "[metrics](metrics.md), [encodings](encodings.md)",
    "fedpatch watch": "[watch a run](../how-to/watch.md)",
    "fedpatch report": "[report on a run](../how-to/report.md)",
    "fedpatch export": "[the files](../how-to/personal-model.md#what-is-in-the-files)",
    "fedpatch runs": "[robustness](../explanation/robustness.md)",
    "fedpatch devices quarantine": "[offences](../explanation/threat-model.md#what-counts-against-a-device)",
    "fedpatch doctor": "[check before a run](../how-to/doctor.md)",
    "fedpatch inventory": "[fleet](../how-to/fleet.md#what-the-coordinator-knows)",
    "fedpatch check-task": "[the checks](../how-to/bring-your-task.md#check-it)",
    "fedpatch broker acl": "[brokers](../how-to/brokers.md)",
    "fedpatch ca": "[security](../how-to/security.md)",
    "fedpatch device": "[security](../how-to/security.md)",
    "fedpatch unit": "[fleet](../how-to/fleet.md)",
    "fedpatch simulate": "[simulate](../how-to/simulator.md)",
    "fedpatch simulate compare": "[which policy](../how-to/simulator.md#which-policy)",
    "fedpatch simulate robustness": "[when devices lie](../explanation/when-devices-lie.md)",
    "fedpatch-agent run": "[preferences](preferences.md)",
    "fedpatch-agent conditions": "[conditions](conditions.md), [what stays private](preferences.md#what-stays-private)",
    "fedpatch-agent unit": "[service](../how-to/service.md)",
    "fedpatch-agent new-task": "[tutorial](../tutorials/own-task.md)",
    "fedpatch-agent predict": "[the personal model](../how-to/personal-model.md)",
    "fedpatch-relay unit": "[relays](../how-to/relays.md)",
    "fedpatch-relay run": "[relays](../how-to/relays.md)",
    "fedpatch-agent models": "[the figures](../how-to/personal-model.md#how-it-is-chosen-and-what-is-reported)",
}
SAME_AS: Mapping[str, str] = {"fedpatch-agent check-task": "fedpatch check-task"}
COMMON = {
    "json",
    "debug",
    "log-format",
    "version",
    "config",
    "print-config",
    "install-completion",
    "show-completion",
    "help",
}
_CONFIG = "--config"
_OFTEN = 2  # commands, from which on an option is described once


def page() -> str:
    """Return the page."""
    found = [one for name, app in PROGRAMS.items() for one in commands(get_command(app), (name,))]
    shared = {name: _shared_options(command for path, command in found if path[0] == name) for name in PROGRAMS}
    sections = (_section(path, command, shared[path[0]]) for path, command in found)
    lists = {name: "".join(f"- {text}\n" for text in sorted(texts)) for name, texts in shared.items() if texts}
    options = "\n".join(f"`{name}`:\n\n{text}" for name, text in lists.items())
    return render("cli.md", options=options, commands="\n".join(sections))


def _shared_options(found: Iterable[Any]) -> set[str]:
    """The description of each option that `_OFTEN` commands have; where there are several, the most frequent one."""
    counts = Counter(item for command in found for item in _options(command).items())
    shared: dict[str, str] = {}
    for (name, text), count in counts.most_common():
        if count >= _OFTEN:
            shared.setdefault(name, text)
    return set(shared.values())


def children(command: Any) -> dict[str, Any]:
    """Return the subcommands by name, also those found as entry points."""
    if not hasattr(command, "list_commands"):
        return {}
    context = typer.Context(command)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands below `command` with their paths, in the order of the help."""
    for name, child in children(command).items():
        yield (*path, name), child
        yield from commands(child, (*path, name))


def _section(path: Sequence[str], command: Any, shared: Set[str]) -> str:
    name = " ".join(path)
    if name in SAME_AS:
        same = SAME_AS[name]
        return f"## `{name}`\n\nThe same as [`{same}`](#{same.replace(' ', '-')}), on the device.\n\n    {_example(command)}\n"
    links = []
    settings = _settings_of(command)
    if settings is not None:
        heading = f"{TITLES[settings]}: `{COMMANDS_OF_SETTINGS[settings]}`"
        anchor = heading.lower().replace(": ", "-").replace("`", "").replace(" ", "-")
        links.append(f"[settings](configuration.md#{anchor})")
    if name in GUIDES:
        links.append(GUIDES[name])
    see = f" See {', '.join(links)}." if links else ""
    parts = [f"## `{name}`", " ".join((command.help or "").split()) + see, f"    {_example(command)}"]
    options = _options(command)
    common = [f"`{name}`" for name, text in options.items() if text in shared]
    if common:
        parts.append(f"Also: {', '.join(common)}.")
    own = [f"- {text}" for text in options.values() if text not in shared]
    if own:
        parts.append("\n".join(own))
    return "\n\n".join(parts) + "\n"


def _example(command: Any) -> str:
    text: str = command.epilog
    return text.removeprefix("Example: ")


def _settings_of(command: Any) -> type[Settings] | None:
    """The settings class whose settings are options of `command`, if it has one."""
    options = {name for parameter in command.params for name in parameter.opts}
    if _CONFIG not in options:
        return None
    fitting = [
        cls for cls in COMMANDS_OF_SETTINGS if {one.flag for one in settings_of(cls) if not one.rules.secret} <= options
    ]
    return fitting[0] if fitting else None


def _options(command: Any) -> dict[str, str]:
    """Describe the arguments and options of `command` by name, without settings and the options of all commands."""
    settings = _settings_of(command)
    left_out = {one.flag for one in settings_of(settings)} if settings is not None else set()
    found = {}
    for parameter in command.params:
        option = parameter.param_type_name == "option"
        name = max(parameter.opts, key=len) if option else (parameter.metavar or parameter.name.upper())
        if name in left_out or name.removeprefix("--") in COMMON or getattr(parameter, "hidden", False):
            continue
        default = (
            f" (`{parameter.default}`)"
            if option and parameter.default not in (None, "") and parameter.default is not False
            else ""
        )
        found[name] = f"`{name}`{default}: {(parameter.help or '').removesuffix('.')}"
    return found
