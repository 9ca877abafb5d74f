"""The command `unit` of agent, coordinator and relay; the template is read when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpatch.shared.app.command import command


def add_unit(
    app: typer.Typer, program: str, part: str, help_text: str, *, name: str = "unit", state_of: str = ""
) -> None:
    """Add the command `unit` to a command line.

    Args:
        app: The command line, made by `make_app`.
        part: The service: agent, bus, coordinator or relay.
        state_of: The service whose state directory it uses; "" for its own.

    Example:
        >>> add_unit(typer.Typer(), "fedpatch-agent", "agent", "Print the unit.")
    """

    def unit(
        user: Annotated[str, typer.Option(metavar="NAME", help="System user of the service.")] = "fedpatch",
        config: Annotated[Path, typer.Option(metavar="PATH", help="Settings of the service.")] = Path(
            f"/etc/fedpatch/{part}.toml"
        ),
        state_dir: Annotated[Path, typer.Option(metavar="PATH", help="State directory of the service.")] = Path(
            f"/var/lib/fedpatch-{state_of or part}"
        ),
    ) -> None:
        from fedpatch.shared.app.systemd_unit import SERVICES, unit_of_this_installation

        text = unit_of_this_installation(SERVICES[part], user=user, config=config, state_dir=state_dir)
        typer.echo(text, nl=False)

    unit.__doc__ = help_text
    command(app, name, example=f"{program} {name} --user fedpatch > fedpatch-{part}.service")(unit)
