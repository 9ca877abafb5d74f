"""`fedpatch broker acl`, a command of its own file: the rules are made when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from shared.command import command


def add_acl(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "acl", example="fedpatch broker acl --fleet kitchen --device pi-1 --device pi-2 > fedpatch.acl")
    def broker_acl(
        fleet: Annotated[str, typer.Option(metavar="NAME", help="Fleet that the rules are for.")],
        coordinator_user: Annotated[
            str, typer.Option(metavar="NAME", help="User name of the coordinator at the broker.")
        ] = "coordinator",
        device: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME", help="A device of the fleet (repeatable); none: every other user."),
        ] = None,
        watcher: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME", help="A user who may look on with `fedpatch watch` (repeatable)."),
        ] = None,
    ) -> None:
        """Print mosquitto's acl_file for a fleet: who may write and read which topic."""
        from shared.topics import mosquitto_acl

        typer.echo(mosquitto_acl(fleet, coordinator_user, device or None, watcher or ()), nl=False)
