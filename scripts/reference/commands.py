"""The page cli.md: all commands, from their help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
    "fedpatch ca init": "[security](../how-to/security.md)",
    "fedpatch device invite": "[a device without ssh](../how-to/fleet.md#a-device-without-ssh)",
    "fedpatch device add": "[security](../how-to/security.md)",
    "fedpatch unit": "[service](../how-to/service.md#the-coordinator-as-a-service)",
    "fedpatch console": "[console](../how-to/console.md)",
    "fedpatch evaluate": "[evaluate rounds](../explanation/concepts.md#evaluate-rounds)",
    "fedpatch privacy plan": "[privacy](../explanation/privacy.md)",
    "fedpatch device rotate": "[security](../how-to/security.md)",
    "fedpatch simulate fleet": "[simulate](../how-to/simulator.md)",
    "fedpatch-agent bus": "[Home Assistant](../how-to/home-assistant.md)",
    "fedpatch-agent enrol": "[security](../how-to/security.md)",
    "fedpatch simulate": "[simulate](../how-to/simulator.md)",
    "fedpatch simulate compare": "[which policy](../how-to/simulator.md#which-policy)",
    "fedpatch-agent run": "[preferences](preferences.md)",
    "fedpatch-agent conditions": "[conditions](conditions.md), [what stays private](preferences.md#what-stays-private)",
    "fedpatch-agent unit": "[service](../how-to/service.md)",
    "fedpatch-agent new-task": "[tutorial](../tutorials/own-task.md)",
    "fedpatch-agent predict": "[the personal model](../how-to/personal-model.md)",
    "fedpatch-relay unit": "[relays](../how-to/relays.md)",
    "fedpatch-relay run": "[relays](../how-to/relays.md)",
    "fedpatch-agent models": "[the figures](../how-to/personal-model.md#how-it-is-chosen-and-what-is-reported)",
}
WHOLE = {"fedpatch run", "fedpatch runs", "fedpatch export", "fedpatch devices quarantine", "fedpatch-agent conditions"}
"""Commands with a guide that leaves out some of their help."""
SAME_AS: Mapping[str, str] = {"fedpatch-agent check-task": "fedpatch check-task"}
COMMON = {
    "json",
    "debug",
    "log-format",
    "version",
    "print-config",
    "install-completion",
    "show-completion",
    "help",
    "help-all",
}
_CONFIG = "--config"
_AS_RUN = ", as of fedpatch run"
_OFTEN = 2  # an option of so many commands is described once


def page() -> str:
    """Return the page."""
    found = [one for name, app in PROGRAMS.items() for one in commands(get_command(app), (name,))]
    shared = {name: _shared_options(command for path, command in found if path[0] == name) for name in PROGRAMS}
    sections = (_section(path, command, shared[path[0]]) for path, command in found if not _only_groups(command))
    lists = {name: "".join(f"- {one}\n" for one in sorted(map(str, texts.values()))) for name, texts in shared.items()}
    options = "\n".join(f"`{name}`:\n\n{text}" for name, text in lists.items() if text)
    return render("cli.md", options=options, commands="\n".join(sections))


class _Option(NamedTuple):
    """An option or argument of a command as the page shows it; `default` is empty where there is none."""

    name: str
    default: str
    help: str

    @property
    def short(self) -> str:
        """Name and default."""
        return f"`{self.name}`" + (f" (`{self.default}`)" if self.default else "")

    def __str__(self) -> str:
        return f"{self.short}: {self.help}"


def _shared_options(found: Iterable[Any]) -> dict[str, _Option]:
    """Return the options that `_OFTEN` commands have, by name; if texts or defaults differ, the most frequent ones."""
    options = [one for command in found for one in _options(command) if not one.help.endswith(_AS_RUN)]
    texts = Counter((one.name, one.help) for one in options)
    shared: dict[str, _Option] = {}
    for one, _ in Counter(options).most_common():
        if texts[one.name, one.help] >= _OFTEN:
            best = shared.setdefault(one.name, one)
            if texts[one.name, one.help] > texts[best.name, best.help]:
                shared[one.name] = one
    return shared


def children(command: Any) -> dict[str, Any]:
    """Return the subcommands by name, also those that are entry points."""
    if not hasattr(command, "list_commands"):
        return {}
    context = typer.Context(command)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands below `command` with their paths, in the order of the help."""
    for name, child in children(command).items():
        yield (*path, name), child
        yield from commands(child, (*path, name))


def _section(path: Sequence[str], command: Any, shared: Mapping[str, _Option]) -> str:
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
    about = _about(command.help or "", short=name in GUIDES and name not in WHOLE)
    parts = [f"## `{name}`", about + see, f"    {_example(command)}"]
    options = _options(command)
    as_run = [one.short for one in options if one.help.endswith(_AS_RUN)]
    common = [one for one in options if one.name in shared and one.help == shared[one.name].help]
    if as_run:
        parts.append(f"As in [`fedpatch run`](configuration.md#coordinator-fedpatch-run): {', '.join(as_run)}.")
    if common:
        names = (f"`{one.name}`" if one.default == shared[one.name].default else one.short for one in common)
        parts.append(f"Also: {', '.join(names)}.")
    own = [f"- {one}" for one in options if one not in common and not one.help.endswith(_AS_RUN)]
    if own:
        parts.append("\n".join(own))
    return "\n\n".join(parts) + "\n"


def _about(text: str, *, short: bool) -> str:
    """Return the help of a command; with `short`, the first paragraph and the exit codes, since a guide has the rest."""
    first, _, rest = (" ".join(part.split()) for part in text.partition("\n\n"))
    if short:
        rest = " ".join(one for one in re.split(r"(?<=\.) (?=[A-Z])", rest) if "xit code" in one)
    return f"{first} {rest}".strip()


def _only_groups(command: Any) -> bool:
    """Return whether a command needs a subcommand, as `fedpatch ca`."""
    return bool(getattr(command, "no_args_is_help", False) and children(command))


def _example(command: Any) -> str:
    text: str = command.epilog
    return text.removeprefix("Example: ")


def _settings_of(command: Any) -> type[Settings] | None:
    """Return the settings class whose settings are options of `command`, if there is one."""
    options = {name for parameter in command.params for name in parameter.opts}
    if _CONFIG not in options:
        return None
    fitting = [
        cls for cls in COMMANDS_OF_SETTINGS if {one.flag for one in settings_of(cls) if not one.rules.secret} <= options
    ]
    return fitting[0] if fitting else None


def _options(command: Any) -> list[_Option]:
    """Describe the arguments and options of `command`, without settings and the options of all commands."""
    settings = _settings_of(command)
    left_out = {_CONFIG, *(one.flag for one in settings_of(settings))} if settings is not None else set()
    found = []
    for parameter in command.params:
        option = parameter.param_type_name == "option"
        name = max(parameter.opts, key=len) if option else (parameter.metavar or parameter.name.upper())
        if name in left_out or name.removeprefix("--") in COMMON or getattr(parameter, "hidden", False):
            continue
        shown = option and parameter.default not in (None, "") and parameter.default is not False
        found.append(_Option(name, str(parameter.default) if shown else "", (parameter.help or "").removesuffix(".")))
    return found
