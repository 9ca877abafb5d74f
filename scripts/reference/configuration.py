"""The page configuration.md: all settings, from the settings classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.fields import Setting, Settings, settings_of
from fedpatch.simulator.fleet.settings import FleetTerms
from scripts.reference.markdown import render, table

COMMANDS: Mapping[type[Settings], str] = {
    RunSettings: "fedpatch run",
    AgentSettings: "fedpatch-agent run",
    DemoSettings: "fedpatch demo",
    FleetTerms: "fedpatch simulate fleet",
}
TITLES: Mapping[type[Settings], str] = {
    RunSettings: "Coordinator",
    AgentSettings: "Device",
    DemoSettings: "Demo",
    FleetTerms: "Simulated fleet",
}


def page() -> str:
    """Return the page."""
    return render("configuration.md", settings="\n".join(reference(cls) for cls in COMMANDS))


def reference(cls: type[Settings]) -> str:
    """Format the section of a settings class: a table per group. Settings that an earlier class has alike are only named."""
    title, command = TITLES.get(cls, cls.__name__), COMMANDS.get(cls, cls.__name__)
    lines = [f"## {title}: `{command}`", "", f"Prefix of variables: `{cls.env_prefix}`.", ""]
    described = dict(_described_before(cls))
    for source, names in _by_source(cls, described).items():
        lines += [f"As in `{source}`: {', '.join(f'`{name}`' for name in names)}.", ""]
    own = [one for one in settings_of(cls) if one.name not in described]
    for group in dict.fromkeys(one.rules.group for one in own):
        rows = [_row(one) for one in own if one.rules.group == group]
        lines += [f"### {group}", "", table(("key", "default", "meaning", "values"), rows)]
    return "\n".join(lines)


def _described_before(cls: type[Settings]) -> Iterator[tuple[str, str]]:
    """Yield the settings of `cls` that a class before it in COMMANDS has with the same text, with that class's command."""
    own = {one.name: _row(one) for one in settings_of(cls)}
    for earlier, command in COMMANDS.items():
        if earlier is cls or cls not in COMMANDS:
            return
        for one in settings_of(earlier):
            if own.get(one.name) == _row(one):
                del own[one.name]
                yield one.name, command


def _by_source(cls: type[Settings], described: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in settings_of(cls):
        if one.name in described:
            found.setdefault(described[one.name], []).append(one.name)
    return found


def _row(one: Setting) -> tuple[str, str, str, str]:
    default = one.default_words
    if not one.required and not one.rules.default_means and one.default is not None:
        default = f"`{default}`"
    return f"`{one.name}`", default, one.rules.help, _values(one)


def _values(one: Setting) -> str:
    """The range and the unit of a setting, such as `1 to 500 chunks`."""
    rules = one.rules
    if rules.secret:
        return "secret: file or environment only"
    least = f"above {rules.gt:.15g}" if rules.gt is not None else "" if rules.ge is None else f"{rules.ge:.15g}"
    if rules.le is not None:
        return f"{least} to {rules.le:.15g} {rules.unit}".strip()
    return ", ".join(filter(None, (one.range, rules.unit)))
