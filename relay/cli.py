"""The command line `fedpatch-relay`: run the relay of a site, and print its status."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedpatch.relay.settings import RelaySettings
from fedpatch.shared.app.command import AsJson, command, make_app, run_app
from fedpatch.shared.app.unit_command import add_unit
from fedpatch.shared.config.load import cli_options
from fedpatch.shared.errors import UsageError

NAME = "fedpatch-relay"

app = make_app(
    NAME,
    "The relay of a site: one device of a hub, and the coordinator of the site's own devices.",
    panels={"Run a site": ["run", "status", "unit"]},
)


def main() -> NoReturn:
    """Entry point; ends the process."""
    run_app(app, NAME)


@command(
    app,
    "run",
    example="fedpatch-relay run --up mqtts://hub.example --up-fleet world --device-id site-7 --fleet site-7 --task digits",
    log_level=logging.INFO,
)
@cli_options(RelaySettings)
def run(
    settings: RelaySettings,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", hidden=True, help="End when stdin is closed.")
    ] = False,
) -> None:
    """Pass a hub's rounds on to the devices of a site until SIGTERM (exit code 0) or Ctrl-C (130).

    A request of the hub becomes one round of the site, and the mean of the site's updates (in a masked round their
    sum) one update of the relay. The hub's run needs --max-members. Differential privacy and SCAFFOLD are
    declined.
    """
    from fedpatch.relay.hub import run_relay

    raise typer.Exit(run_relay(settings, until_stdin_closes=until_stdin_closes))


StateDir = Annotated[
    Path,
    typer.Option(
        "--state-dir",
        envvar="FEDPATCH_RELAY_STATE_DIR",
        metavar="DIR",
        help="State directory of the relay.",
        show_default=True,
    ),
]


@command(app, "status", example="fedpatch-relay status --state-dir /var/lib/fedpatch-relay")
def status(state_dir: StateDir = Path("fedpatch-relay-state"), as_json: AsJson = False) -> None:
    """Print the relay's status from its state directory; exit code 1 if no relay runs."""
    from fedpatch.device_agent.state.status_file import LOCK_NAME, read_standing

    directory = state_dir.expanduser() / "device"
    if not (directory / LOCK_NAME).exists():
        raise UsageError(f"no relay has run in {state_dir}; name its directory with --state-dir")
    standing = read_standing(directory)
    about = standing.status
    if as_json:
        typer.echo(json.dumps({"running": standing.running, **about, "update_waits": standing.update_waits}))
    elif not standing.running:
        typer.echo("the relay is not running")
    else:
        link = "connected to" if about.get("connected") else "not connected to"
        typer.echo(f"the relay {about.get('device_id')} is {about.get('state')}, {link} {about.get('broker')}")
        for task in about.get("tasks", ()):
            typer.echo(f"task {task['task']}: {task['num_examples']} training examples in the site")
        typer.echo(f"update: {'waits for the hub' if standing.update_waits else 'none waits'}")
    if not standing.running:
        raise typer.Exit(1)


add_unit(
    app,
    NAME,
    "relay",
    """Print the systemd unit that runs this installation's relay as a watched and confined service.

    Secrets such as FEDPATCH_RELAY_UP_PASSWORD=... are in a file beside the settings that ends in .env.
    """,
)
