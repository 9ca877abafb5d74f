"""`fedpatch-agent conditions`, in a file of its own: its imports are made when the command runs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpatch.device_agent.cli.state_dir import in_place, settings_file
from fedpatch.device_agent.sensors.device_facts import Confidence, Fact
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.config.load import Source, cli_options

if TYPE_CHECKING:
    from fedpatch.device_agent.cli.admission_preview import AdmissionPreview

_log = logging.getLogger("fedpatch.agent")

ConditionsRoot = Annotated[Path, typer.Option("--conditions-root", hidden=True, help="Where conditions are read.")]


def add_conditions(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "conditions", example="fedpatch-agent conditions --config agent.toml")
    @cli_options(AgentSettings, find_file=settings_file)
    def conditions(
        settings: AgentSettings,
        source: Source[AgentSettings],
        as_json: AsJson = False,
        root: ConditionsRoot = Path("/"),
    ) -> None:
        """Print each condition of this device, the private floor, and whether the agent would accept work now (exit code 0).

        A condition has a value, a source and a confidence. Neither broker nor agent is needed.
        """
        from fedpatch.device_agent.cli.admission_preview import look

        settings = in_place(settings, source)
        if not settings.state_dir.exists():
            _log.warning("no agent has run in %s; say where its state is with --state-dir", settings.state_dir)
        found = look(settings, root)
        if as_json:
            typer.echo(json.dumps(_plain(found)))
        else:
            for line in _in_words(found):
                typer.echo(line)


def _plain(found: AdmissionPreview) -> dict[str, Any]:
    return {
        "would_accept": not found.why_not,
        "why": found.verdict.why or "; ".join(found.why_not),
        "terms": list(found.terms),
        "settings_not_in_force": list(found.differences),
        "missed": [{"condition": one.condition, "words": one.words} for one in found.objections],
        "private": dict(found.private),
        "facts": {
            name: {"value": fact.value, "source": fact.source, "confidence": fact.confidence}
            for name, fact in vars(found.facts).items()
        },
    }


def _in_words(found: AdmissionPreview) -> list[str]:
    lines = [
        f"{name.replace('_', ' '):<18} {_value(fact):<10} {_origin(fact)}" for name, fact in vars(found.facts).items()
    ]
    lines += ["", f"private: {found.private['words']}"]
    lines += [f"not in force: {words}" for words in found.differences]
    with_these = " with these settings" if found.differences else ""
    if not found.why_not:
        lines.append(f"it would accept work now{with_these}")
        lines += [f"  {words}" for words in found.terms]
        lines += [f"  independent of its preferences: {one.words}" for one in found.objections]
        return lines
    return [*lines, f"it would not accept work now{with_these}:", *(f"  {words}" for words in found.why_not)]


def _value(fact: Fact[Any]) -> str:
    if fact.value is None:
        return "unknown"
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    return f"{fact.value:.6g}" if isinstance(fact.value, float) else str(fact.value)


def _origin(fact: Fact[Any]) -> str:
    return f"{fact.source} (assumed)" if fact.confidence is Confidence.ASSUMED else fact.source
