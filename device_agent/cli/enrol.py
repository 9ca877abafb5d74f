"""`fedpatch-agent enrol`, in a file of its own: its imports are made when the command runs."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.app.command import AsJson, command, say
from fedpatch.shared.config.toml_edit import parse_toml
from fedpatch.shared.errors import UsageError

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
        file: Annotated[
            Path | None, typer.Argument(metavar="FILE", help="Bundle that `fedpatch device add` wrote.")
        ] = None,
        server: Annotated[
            str | None,
            typer.Option(
                "--from", metavar="HOST[:PORT]", help="Ask `fedpatch ca serve` there for a certificate, by a word."
            ),
        ] = None,
        word: Annotated[
            str | None,
            typer.Option(
                envvar="FEDPATCH_AGENT_WORD",
                metavar="WORD",
                help="Word of `fedpatch device invite`; without it, the command asks for it.",
            ),
        ] = None,
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
        """Install a device's identity: identity files (mode 0600) and connection settings.

        FILE is the bundle of `fedpatch device add`. With --from the device makes its key itself, asks for a certificate
        with the operator's word, and waits for the approval. Other settings stay. A newer identity renews the
        certificate, which a running agent loads by itself. Exit code 1: the bundle is damaged, or the answer is not by
        the word; 2: it belongs to another device, or the word is wrong.
        """
        if (file is None) is (server is None):
            raise UsageError("name the bundle of `fedpatch device add`, or with --from the host of `fedpatch ca serve`")
        where = state_dir or _state_dir_in(_settings(config))
        places = {"config": config.expanduser(), "state_dir": where.expanduser()}
        if server is not None:
            done = _by_word(server, word, **places, replace=replace)
        else:
            assert file is not None
            done = _by_bundle(file, **places, replace=replace)
        _tell(done, file, config, where, as_json=as_json)


def _by_bundle(file: Path, *, config: Path, state_dir: Path, replace: bool) -> Enrolled:
    from fedpatch.device_agent.cli.bundle_installation import install, open_to_others, read_bundle

    done = install(read_bundle(file), config=config, state_dir=state_dir, replace=replace)
    done.warnings += open_to_others(file, done.device)
    return done


def _by_word(server: str, word: str | None, *, config: Path, state_dir: Path, replace: bool) -> Enrolled:
    from fedpatch.device_agent.cli.enrolment_by_word import enrol_by_word, server_address

    address = server_address(server)
    if word is None:
        say("type the word of `fedpatch device invite`:")
        word = sys.stdin.readline()
    return enrol_by_word(address, word, config=config, state_dir=state_dir, replace=replace, tell=say)


def _tell(done: Enrolled, file: Path | None, config: Path, state_dir: Path, *, as_json: bool) -> None:
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
    if file is not None:
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
