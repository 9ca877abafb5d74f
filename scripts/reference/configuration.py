"""The page configuration.md: all settings, from the settings classes."""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.bus.settings import TOPIC, BusSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.relay.settings import RelaySettings
from fedpatch.shared.config.fields import NAME, Rules, Setting, Settings, settings_of
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
ENDS: Mapping[str, str] = {"": "", "up_": " for the hub's broker", "down_": " for the site's broker"}
"""Prefixes of settings, where a program has two connections."""
_TERMS: Mapping[str, str] = {NAME.words: "name", TOPIC.words: "topic"}
"""Forms that the head of the page defines."""
ELSEWHERE: Mapping[str, str] = {
    "Preferences": "preferences.md#meaning-of-each-preference",
    "Daily allowance": "preferences.md#meaning-of-each-preference",
    "Lost preferences during work": "preferences.md#loss-of-a-preference-during-work",
    "Limits to work requests": "preferences.md#limits-to-requests",
}
"""Groups of settings whose meaning another page has."""
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
    """Format the section of a settings class as a list per group; settings as in an earlier class are only named."""
    title, command = TITLES.get(cls, cls.__name__), COMMANDS.get(cls, cls.__name__)
    lines = [f"## {title}: `{command}`", "", f"Variables: `{cls.env_prefix}...`", ""]
    described: set[str] = set()
    for earlier, source in COMMANDS.items():
        if earlier is cls or cls not in COMMANDS:
            break
        for prefix, end in ENDS.items():
            alike = {name: words for name, words in _alike(cls, earlier, prefix).items() if name not in described}
            described |= set(alike)
            if alike:
                lines += [f"As in `{source}`{end}: {', '.join(dict.fromkeys(alike.values()))}.", ""]
    own = [one for one in settings_of(cls) if one.name not in described]
    for group in dict.fromkeys(one.rules.group for one in own):
        members = [one for one in own if one.rules.group == group]
        if group in ELSEWHERE:
            lines += [f"**{group}** ([meaning]({ELSEWHERE[group]})): {', '.join(map(_short, members))}", ""]
        else:
            lines += [f"**{group}**", "", *map(_item, members), ""]
    return "\n".join(lines)


def _alike(cls: type[Settings], earlier: type[Settings], prefix: str) -> dict[str, str]:
    """Return the settings of `cls` that `earlier` has without `prefix`, with the words that name them.

    Settings without a prefix have the same meaning and range, but may have another default, which is then shown. If a whole
    group is the same, the group is named instead of its settings.
    """
    own = {one.name: one for one in settings_of(cls)}
    found: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for one in settings_of(earlier):
        name = prefix + one.name
        groups.setdefault(one.rules.group, []).append(name)
        if name not in own or own[name].kind is not one.kind:
            continue
        default = _default(own[name])
        same = default == _default(one) or (bool(prefix) and default.replace(prefix, "") == _default(one))
        if same if prefix else _meaning(own[name]) == _meaning(one):
            found[name] = f"`{name}`" if same else f"`{name}` ({default})"
    for group, names in groups.items():
        if len(names) > 1 and all(found.get(name) == f"`{name}`" for name in names):
            found |= dict.fromkeys(names, f"all of **{group}**")
    return found


def _item(one: Setting) -> str:
    """Return a list item such as ``- `nice` (`10`): Niceness of training (0–19)``."""
    return f"- `{one.name}` ({_default(one)}): {_meaning(one)}"


def _short(one: Setting) -> str:
    values = _values(one)
    return f"`{one.name}` ({_default(one)}{f'; {values}' if values else ''})"


def _default(one: Setting) -> str:
    if one.required or one.rules.default_means:
        return one.default_words
    return "none" if one.default in (None, "") else f"`{one.default_words}`"


def _meaning(one: Setting) -> str:
    text, values = one.rules.help, _values(one)
    sentence = text.removesuffix(".") if not text.endswith("...") else text
    return sentence + (f" ({values})" if values else "")


def _values(one: Setting) -> str:
    """Return range and unit of a setting, such as `0–100 percent`, without units that its name or meaning has."""
    rules = one.rules
    if rules.secret:
        return "file or environment only"
    if rules.choices:
        values = ", ".join(choice for choice in rules.choices if choice not in rules.help)
    elif rules.pattern:
        values = rules.pattern.words
        for words, term in _TERMS.items():
            values = values.replace(words, term)
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
