"""The commands `fedpatch privacy`: the outlook of a run with differential privacy."""

from __future__ import annotations

from typing import Annotated

import typer

from fedpatch.coordinator.cli.tables import print_json
from fedpatch.shared.app.command import AsJson, Group, command, no_options

_EXAMPLE = "fedpatch privacy plan --devices 200 --parameters 1000 --rounds 7 --epsilon 8"


def add_privacy(app: typer.Typer) -> None:
    """Add the group `privacy` to `app`."""
    group = typer.Typer(cls=Group, no_args_is_help=True, help="Plan differential privacy (setting dp of a run).")
    group.callback()(no_options)
    command(group, "plan", example=_EXAMPLE)(plan)
    app.add_typer(group, name="privacy", epilog=f"Example: {_EXAMPLE}")


def plan(
    devices: Annotated[int, typer.Option(metavar="N", help="Devices that each round is meant for.")],
    parameters: Annotated[int, typer.Option(metavar="D", help="Public values, that is those that leave the devices.")],
    rounds: Annotated[
        int, typer.Option(metavar="R", help="Rounds of the run, in all of which a device may take part.")
    ],
    epsilon: Annotated[float, typer.Option(metavar="E", help="Epsilon of such a device.")],
    delta: Annotated[float, typer.Option(metavar="DELTA", help="Its delta; less than 1 / devices.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Compute the noise that keeps an epsilon, and whether a run with it learns anything.

    The ratio is the L2 norm of the noise on the mean over the clip. Exit code 0: the model learns, or may learn; 1: above
    0.5, nothing will be learnt. The verdict in the JSON is learns, doubtful or learns_nothing.
    """
    from fedpatch.shared.privacy.plan import Verdict, make_plan

    found = make_plan(devices=devices, parameters=parameters, rounds=rounds, epsilon=epsilon, delta=delta)
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(
            f"noise multiplier {found.noise_multiplier:g}, for epsilon {epsilon:g} at delta {delta:g}, {rounds} rounds"
        )
        typer.echo(found.words)
    if found.verdict is Verdict.LEARNS_NOTHING:
        raise typer.Exit(1)
