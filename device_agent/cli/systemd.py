"""`fedpatch-agent unit`, a command of its own file: what it looks at is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpatch.shared.app.command import command


def add_unit(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "unit", example="fedpatch-agent unit --user fedpatch > fedpatch-agent.service")
    def unit(
        user: Annotated[str, typer.Option(metavar="NAME", help="System user of the service.")] = "fedpatch",
        config: Annotated[Path, typer.Option(metavar="PATH", help="The agent's settings.")] = Path(
            "/etc/fedpatch/agent.toml"
        ),
        state_dir: Annotated[Path, typer.Option(metavar="PATH", help="The agent's state directory.")] = Path(
            "/var/lib/fedpatch-agent"
        ),
    ) -> None:
        """Print the systemd unit that runs this installation's agent as a watched and confined service."""
        from fedpatch.shared.app.systemd_unit import AGENT, unit_of_this_installation

        typer.echo(unit_of_this_installation(AGENT, user=user, config=config, state_dir=state_dir), nl=False)
