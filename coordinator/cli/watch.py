"""The command `fedpatch watch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpatch.coordinator.cli.options import broker_options
from fedpatch.shared.app.command import command
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import FedpatchError

if TYPE_CHECKING:
    from fedpatch.shared.mqtt.broker_settings import BrokerSettings

_StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDPATCH_STATE_DIR",
        metavar="PATH",
        help="State directory; default: ./fedpatch-state, else the one of a demo here.",
    ),
]
_Once = Annotated[bool, typer.Option("--once", help="Show the status once and end.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document per line on stdout at each change.")]


def add_watch(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "watch", example="fedpatch watch --broker mqtts://broker.local --fleet kitchen")
    @broker_options("Broker; default: the newest run's.")
    def watch(
        given: dict[str, Any], state_dir: _StateDir = None, once: _Once = False, as_json: _AsJson = False
    ) -> None:
        """Watch a run on any machine until Ctrl-C, also while the coordinator is away.

        In a pipe it prints a line per round. Exit code 3: the broker cannot be reached at the start; 1: --once
        receives nothing.
        """
        from fedpatch.coordinator.operations.watch import watch
        from fedpatch.shared.config.secrets import pop_password

        with interruptible():
            password = pop_password(os.environ)
            watch(broker_settings(given, state_dir, password, say_on_stderr), once=once, as_json=as_json)


def say_on_stderr(line: str) -> None:
    """Print a line beside the results."""
    typer.echo(line, err=True)


def _fleet_here(state_dir: Path | None) -> str:
    """Return the fleet of the newest run on this machine; "" without a run."""
    from fedpatch.coordinator.operations.watch import newest_run
    from fedpatch.coordinator.storage.state_dirs import find, with_runs

    try:
        run = newest_run(with_runs() if state_dir is None else [find(state_dir)], None)
    except FedpatchError:
        return ""
    return str(run.settings.get("fleet") or "")


def _fleet_of(cert_file: Path | None) -> str:
    """Return the fleet that a watcher's certificate names; "" for none."""
    from fedpatch.shared.mqtt.tls_context import certificates_of

    own = next(iter(certificates_of(cert_file)), None)
    return own.holder.fleet if own is not None and own.holder is not None else ""


def broker_settings(
    given: Mapping[str, Any],
    state_dir: Path | None,
    password: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> BrokerSettings:
    """Return the given settings; if they name no broker, take the missing ones from the newest run on this machine.

    If they name a broker and no fleet, the fleet is that of the certificate, else that of the newest run.

    Args:
        given: The options of the connection; None for one that is not given.
        state_dir: Where the runs are; None: in the usual places.
        password: Password for the broker, of the environment.
        tell: Is called with a line if the newest run is not going on.
    """
    from fedpatch.coordinator.operations.watch import newest_run
    from fedpatch.coordinator.storage.state_dirs import find, with_runs
    from fedpatch.shared.config.load import load
    from fedpatch.shared.mqtt.broker_settings import BrokerSettings

    texts = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    flags: dict[str, object] = {name: value for name, value in texts.items() if value is not None}
    if "broker" not in flags:
        run = newest_run(with_runs() if state_dir is None else [find(state_dir)], given["fleet"])
        # A given certificate has its own key: the run's key belongs to the run's certificate. Likewise a given user or
        # password replaces the run's password file.
        own = given["username"] is not None or password is not None
        wanted = [name for name in given if name != "password_file" or not own]
        wanted += ["key_file"] if given["cert_file"] is None else []
        known = {name: run.settings.get(name) for name in wanted}
        flags = {**{name: value for name, value in known.items() if value is not None}, **flags}
        if run.status != "running":
            tell(f"run {run.id} is not going on ({run.status}); waiting for the next one")
    elif given["fleet"] is None and (fleet := _fleet_of(given["cert_file"]) or _fleet_here(state_dir)):
        flags["fleet"] = fleet
    return load(BrokerSettings, file=None, environ={"FEDPATCH_PASSWORD": password} if password else {}, flags=flags)
