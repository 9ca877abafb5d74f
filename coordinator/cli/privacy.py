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
    devices: Annotated[int, typer.Option(metavar="N", help="Devices of a round.")],
    parameters: Annotated[int, typer.Option(metavar="D", help="Values that leave the devices.")],
    rounds: Annotated[int, typer.Option(metavar="R", help="Rounds in which a device takes part.")],
    epsilon: Annotated[float, typer.Option(metavar="E", help="Epsilon of such a device.")],
    delta: Annotated[float, typer.Option(metavar="DELTA", help="Its delta; less than 1 / devices.")] = 1e-5,
    dp: Annotated[
        str, typer.Option(metavar="central|distributed", help="Who adds the noise, as of fedpatch run.")
    ] = "central",
    group_size: Annotated[int, typer.Option(metavar="N", help="Largest masked group, as of fedpatch run.")] = 32,
    threshold: Annotated[
        str, typer.Option(metavar="half|two_thirds", help="Threshold of a group, as of fedpatch run.")
    ] = "two_thirds",
    colluders: Annotated[
        int, typer.Option(metavar="N", help="Devices of a group whose noise does not count, as of fedpatch run.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Compute the noise that keeps an epsilon, and whether a run with it learns anything.

    The ratio is the L2 norm of the noise on the mean over the clip. Exit code 1: the noise on the mean is more than half of
    the clip, so little or nothing is learnt. The verdict in the JSON is learns, doubtful or learns_nothing.
    """
    from fedpatch.coordinator.aggregation.privacy_policy import delta_problem
    from fedpatch.shared.errors import UsageError
    from fedpatch.shared.privacy.plan import Verdict, make_plan
    from fedpatch.shared.wire.masking_messages import MAX_GROUP

    found = make_plan(
        devices=devices,
        parameters=parameters,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        groups=_groups(dp, devices, group_size, threshold, colluders),
        # The grid of a run has room for its largest group, which min_group can raise to MAX_GROUP.
        group_max=MAX_GROUP,
    )
    if why := delta_problem(delta, devices):
        raise UsageError(f"--delta: {why}")
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(
            f"noise multiplier {found.noise_multiplier:g}, for epsilon {epsilon:g} at delta {delta:g}, {rounds} rounds"
        )
        typer.echo(found.words)
    if found.verdict is Verdict.LEARNS_NOTHING:
        raise typer.Exit(1)


def _groups(dp: str, devices: int, group_size: int, threshold: str, colluders: int) -> list[tuple[int, int]]:
    """Return the size of each masked group and how many of its devices share the noise; empty if the coordinator adds it."""
    from fedpatch.coordinator.aggregation.privacy_policy import CENTRAL, DISTRIBUTED
    from fedpatch.coordinator.masking.masked_groups import LEAST_GROUP, group_sizes
    from fedpatch.shared.errors import UsageError
    from fedpatch.shared.masking.group_threshold import most_colluders, threshold_of
    from fedpatch.shared.wire.masking_messages import MAX_GROUP, ThresholdRule

    if dp not in (CENTRAL, DISTRIBUTED):
        raise UsageError(f"--dp: {dp!r} is neither {CENTRAL} nor {DISTRIBUTED}")
    if dp == CENTRAL:
        return []
    if not LEAST_GROUP <= group_size <= MAX_GROUP:
        raise UsageError(f"--group-size: {group_size} is not from {LEAST_GROUP} to {MAX_GROUP}")
    if threshold not in list(ThresholdRule):
        raise UsageError(f"--threshold: {threshold!r} is neither half nor two_thirds")
    if devices < LEAST_GROUP:
        raise UsageError(f"--devices: {devices} are too few for a masked group of {LEAST_GROUP}")
    sizes = group_sizes(devices, size=group_size, least=LEAST_GROUP)
    needed = {size: threshold_of(ThresholdRule(threshold), size) for size in sizes}
    most = min(most_colluders(needed[size], size) for size in sizes)
    if not 0 <= colluders <= most:
        raise UsageError(f"--colluders: {colluders} is not from 0 to {most}, which these groups withstand")
    return [(size, needed[size] - colluders) for size in sizes]
