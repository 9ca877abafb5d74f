"""`fedpatch unit`, a command of its own file: what it looks at is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shared.command import command


def add_unit(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "unit", example="fedpatch unit --user fedpatch > fedpatch-coordinator.service")
    def unit(
        user: Annotated[str, typer.Option(metavar="NAME", help="System user that the service runs as.")] = "fedpatch",
        config: Annotated[Path, typer.Option(metavar="PATH", help="The coordinator's settings.")] = Path(
            "/etc/fedpatch/coordinator.toml"
        ),
        state_dir: Annotated[Path, typer.Option(metavar="PATH", help="The coordinator's state directory.")] = Path(
            "/var/lib/fedpatch-coordinator"
        ),
    ) -> None:
        """Print the systemd unit that runs this installation's coordinator as a service, confined."""
        from shared.systemd_unit import COORDINATOR, unit_of_this_installation

        typer.echo(unit_of_this_installation(COORDINATOR, user=user, config=config, state_dir=state_dir), nl=False)
