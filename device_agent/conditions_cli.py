"""`fedpatch-agent conditions`, a command of its own file: what it looks at is imported when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_agent.settings import AgentSettings
from shared.command import AsJson, command
from shared.config import cli_options

if TYPE_CHECKING:
    from device_agent.admission import Verdict
    from device_agent.facts import Fact, Facts
    from device_agent.preferences import Objection


def add_conditions(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "conditions", example="fedpatch-agent conditions --config agent.toml")
    @cli_options(AgentSettings)
    def conditions(
        settings: AgentSettings,
        as_json: AsJson = False,
        root: Annotated[Path, typer.Option("--conditions-root", hidden=True)] = Path("/"),
    ) -> None:
        """Look at this device as the agent does, and tell whether it would accept work now, and why not."""
        facts, verdict, objections = _look(settings, root)
        if as_json:
            typer.echo(json.dumps(_plain(facts, verdict, objections)))
        else:
            for line in _in_words(facts, verdict, objections):
                typer.echo(line)


def _look(settings: AgentSettings, root: Path) -> tuple[Facts, Verdict, tuple[Objection, ...]]:
    from device_agent.admission import decide, parse_order
    from device_agent.local_time import local_now
    from device_agent.owner import text_of
    from device_agent.preferences import Preferences, judge
    from device_agent.running import observer_of
    from device_agent.usage import read_today

    directory = settings.state_dir.absolute()
    order = parse_order(settings.admission)
    facts = observer_of(settings, directory, root).observe()
    # Of a task that is named by its module, only loading it would tell the name.
    task = "" if ":" in settings.task else settings.task
    objections = judge(Preferences.of(settings), facts, read_today(directory), local=local_now(), task=task)
    return facts, decide(order, text_of(order), objections), objections


def _plain(facts: Facts, verdict: Verdict, objections: tuple[Objection, ...]) -> dict[str, Any]:
    return {
        "would_accept": verdict.accept,
        "why": verdict.why,
        "missed": [{"condition": one.condition, "words": one.words} for one in objections],
        "facts": {
            name: {"value": fact.value, "source": fact.source, "confidence": fact.confidence}
            for name, fact in vars(facts).items()
        },
    }


def _in_words(facts: Facts, verdict: Verdict, objections: tuple[Objection, ...]) -> list[str]:
    lines = [f"{name.replace('_', ' '):<18} {_value(fact):<10} {_origin(fact)}" for name, fact in vars(facts).items()]
    lines.append("")
    if verdict.accept:
        lines.append("it would accept work now")
        lines += [f"  whatever its preferences say: {one.words}" for one in objections]
        return lines
    reasons = [one.words for one in objections] or [verdict.why]
    return [*lines, "it would not accept work now:", *(f"  {words}" for words in reasons)]


def _value(fact: Fact[Any]) -> str:
    if fact.value is None:
        return "unknown"
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    return f"{fact.value:.6g}" if isinstance(fact.value, float) else str(fact.value)


def _origin(fact: Fact[Any]) -> str:
    from device_agent.facts import Confidence

    return f"{fact.source} (assumed)" if fact.confidence is Confidence.ASSUMED else fact.source
