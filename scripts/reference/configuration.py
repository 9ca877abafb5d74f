"""The page configuration.md: all settings, from the settings classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.bus.settings import BusSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.relay.settings import RelaySettings
from fedpatch.shared.config.fields import Rules, Setting, Settings, settings_of
from fedpatch.simulator.fleet.settings import FleetTerms
from scripts.reference.markdown import render

COMMANDS: Mapping[type[Settings], str] = {
    RunSettings: "fedpatch run",
    AgentSettings: "fedpatch-agent run",
    BusSettings: "fedpatch-agent bus",
    RelaySettings: "fedpatch-relay run",
    DemoSettings: "fedpatch demo",
    FleetTerms: "fedpatch simulate fleet",
}
_SHOWN_UNITS = ("percent", "°C")
TITLES: Mapping[type[Settings], str] = {
    RunSettings: "Coordinator",
    AgentSettings: "Device",
    BusSettings: "Bus",
    RelaySettings: "Relay",
    DemoSettings: "Demo",
    FleetTerms: "Simulated fleet",
}


def page() -> str:
    """Return the page."""
    return render("configuration.md", settings="\n".join(reference(cls) for cls in COMMANDS))


def reference(cls: type[Settings]) -> str:
    """Format the section of a settings class as a list per group; settings alike in an earlier class are only named."""
    title, command = TITLES.get(cls, cls.__name__), COMMANDS.get(cls, cls.__name__)
    lines = [f"## {title}: `{command}`", "", f"Prefix of variables: `{cls.env_prefix}`.", ""]
    described = dict(_described_before(cls))
    for source, names in _by_source(cls, described).items():
        lines += [f"As in `{source}`: {', '.join(f'`{name}`' for name in names)}.", ""]
    own = [one for one in settings_of(cls) if one.name not in described]
    for group in dict.fromkeys(one.rules.group for one in own):
        lines += [f"**{group}**", "", *(_item(one) for one in own if one.rules.group == group), ""]
    return "\n".join(lines)


def _described_before(cls: type[Settings]) -> Iterator[tuple[str, str]]:
    """Yield the settings of `cls` that a class before it in COMMANDS has with the same text, with that class's command."""
    own = {one.name: _item(one) for one in settings_of(cls)}
    for earlier, command in COMMANDS.items():
        if earlier is cls or cls not in COMMANDS:
            return
        for one in settings_of(earlier):
            if own.get(one.name) == _item(one):
                del own[one.name]
                yield one.name, command


def _by_source(cls: type[Settings], described: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in settings_of(cls):
        if one.name in described:
            found.setdefault(described[one.name], []).append(one.name)
    return found


def _item(one: Setting) -> str:
    """A list item such as ``- `nice` (`10`): Niceness of training (0–19)``."""
    default = one.default_words
    if not one.required and not one.rules.default_means and one.default is not None:
        default = f"`{default}`"
    text, values = one.rules.help, _values(one)
    sentence = text.removesuffix(".") if not text.endswith("...") else text
    return f"- `{one.name}` ({default}): {sentence}" + (f" ({values})" if values else "")


def _values(one: Setting) -> str:
    """The range and the unit of a setting, such as `0–100 percent`, without units that the name or the meaning has."""
    rules = one.rules
    if rules.secret:
        return "file or environment only"
    if rules.choices:
        values = ", ".join(choice for choice in rules.choices if choice not in rules.help)
    elif rules.pattern:
        values = rules.pattern.words
    else:
        values = _range(rules)
    return f"each {values}" if values and one.kind is tuple else values


def _range(rules: Rules) -> str:
    unit = rules.unit if rules.unit in _SHOWN_UNITS else ""
    least = f">{rules.gt:.15g}" if rules.gt is not None else "" if rules.ge is None else f"{rules.ge:.15g}"
    if rules.le is None:
        return f"at least {least} {unit}".strip() if least else unit
    dash = " to " if least.startswith("-") else "–"
    return f"{least}{dash}{rules.le:.16g} {unit}".strip()
