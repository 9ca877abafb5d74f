"""`fedpatch-agent enrol`, in a file of its own: its imports are made when the command runs."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.config.toml_edit import parse_toml

if TYPE_CHECKING:
    from fedpatch.device_agent.cli.bundle_installation import Enrolled


def add_enrol(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(
        app,
        "enrol",
        example="fedpatch-agent enrol pi-1.bundle --config /etc/fedpatch/agent.toml --state-dir /var/lib/fedpatch-agent",
    )
    def enrol(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="Bundle that `fedpatch device add` wrote.")],
        config: Annotated[
            Path,
            typer.Option(metavar="PATH", help="Settings file to write: broker, fleet, device, files."),
        ] = Path("agent.toml"),
        state_dir: Annotated[
            Path | None,
            typer.Option(
                envvar="FEDPATCH_AGENT_STATE_DIR",
                metavar="PATH",
                help="State directory of the agent; default: from the settings.",
            ),
        ] = None,
        replace: Annotated[bool, typer.Option("--replace", help="Replace another identity of this device.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Install the bundle of `fedpatch device add`: identity files (mode 0600) and connection settings.

        Other settings stay. A newer bundle renews the certificate, which a running agent loads by itself. Exit code
        1: the bundle is damaged; 2: it belongs to another device.
        """
        from fedpatch.device_agent.cli.bundle_installation import install, open_to_others, read_bundle

        where = state_dir or _state_dir_in(_settings(config))
        done = install(read_bundle(file), config=config.expanduser(), state_dir=where.expanduser(), replace=replace)
        done.warnings += open_to_others(file, done.device)
        _tell(done, file, config, where, as_json=as_json)


def _tell(done: Enrolled, file: Path, config: Path, state_dir: Path, *, as_json: bool) -> None:
    for warning in done.warnings:
        typer.echo(f"fedpatch-agent: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    typer.echo(
        f"this device is {done.device} of fleet {done.fleet}" + ("" if done.written else "; nothing has changed")
    )
    for path in done.written:
        typer.echo(f"wrote {path}")
    typer.echo(f"delete {file}")
    settings = _settings(config)
    if "broker" not in settings:
        typer.echo(f'write into {config} the address of the broker, such as broker = "mqtts://broker.local"')
    if "data" not in settings:
        typer.echo(f'write into {config} what the device trains with, such as task = "digits" and data = "shard:0/10"')
    known = _state_dir_in(settings).expanduser().absolute() == state_dir.expanduser().absolute()
    places = ["--config", str(config), *([] if known else ["--state-dir", str(state_dir)])]
    typer.echo(f"then: fedpatch-agent doctor {shlex.join(places)}")


def _settings(config: Path) -> dict[str, Any]:
    """Return the settings in the file; none if it cannot be read, which `install` reports."""
    with suppress(OSError, ValueError, RecursionError):
        return parse_toml(config.expanduser().read_text("utf-8-sig"))
    return {}


def _state_dir_in(settings: dict[str, Any]) -> Path:
    found = settings.get("state_dir")
    return Path(found) if isinstance(found, str) else AgentSettings.state_dir
