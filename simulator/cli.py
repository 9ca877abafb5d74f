"""The commands `fedpatch simulate`: the user's own study, a comparison of policies, and the round policy on a simulated fleet.

`fedpatch` finds `app` as an entry point. Each command imports its other modules when it runs. stdout gets only results
(with `--json` a single JSON document), stderr everything else.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, get_type_hints

import typer

from fedpatch.shared.app.command import AsJson, Group, command, option, say, with_debug, with_options
from fedpatch.shared.app.signals import EXIT_INTERRUPTED, stoppable
from fedpatch.shared.errors import UsageError
from fedpatch.simulator.comparison.command import compare
from fedpatch.simulator.fleet.command import fleet
from fedpatch.simulator.spec.compute import (
    STOPPING,
    Clients,
    Data,
    DataRoot,
    Device,
    Epochs,
    Participation,
    TaskName,
    Workers,
    rank_count,
    rank_number,
)
from fedpatch.simulator.spec.study import DEFAULTS, AttackOutcome, Outcome, Point, Study

if TYPE_CHECKING:
    from rich.table import Table

    from fedpatch.simulator.experiment.progress import StudyProgress

EXAMPLE = "fedpatch simulate --task mnist --clients 200 --participation 0.5 --private affine --target-ua 0.97"


app = typer.Typer(cls=Group, invoke_without_command=True, add_completion=False, epilog=f"Example: {EXAMPLE}")

_TERMS: Sequence[tuple[str, str, str]] = (
    (
        "strategy",
        "NAME",
        "Strategy, by name (fedpatch strategies) or as module:attribute; or per-fedavg, pfedme or independent.",
    ),
    (
        "private",
        "POLICY",
        "Patch, as of fedpatch run.",
    ),
    ("rounds", "N", "Rounds after which the study ends."),
    ("target_ua", "UA", "User accuracy that ends the study earlier."),
    ("seed", "INTEGER", "Seed, as of fedpatch run."),
    ("learning_rate", "RATE", "Learning rate of the clients (Per-FedAvg: beta, pFedMe: eta)."),
    ("server_learning_rate", "RATE", "Rate of the server's optimizer, as of fedpatch run."),
    ("adaptation_rate", "RATE", "Per-FedAvg's alpha; default: the published one."),
    ("proximity", "NUMBER", "pFedMe's lambda; default: the published one."),
    ("batch_size", "N", "Examples per minibatch, as of fedpatch run."),
    ("steps", "N", "Minibatches per round, as of fedpatch run."),
    ("noisy_fraction", "SHARE", "Share of the clients with noisy data, not counted in user accuracy."),
    ("encoding", "NAME", "Encoding, as of fedpatch run."),
    ("norm_bound", "BOUND", "Bound of updates, as of fedpatch run."),
    ("max_num_examples", "CAP", "Largest weight, as of fedpatch run."),
    ("aggregate", "RULE", "Rule of aggregation, as of fedpatch run."),
    ("dp", "off|central|distributed", "Differential privacy, as of fedpatch run."),
    ("noise_multiplier", "Z", "Noise multiplier, as of fedpatch run."),
    ("dp_clip", "NORM", "Clip of updates, as of fedpatch run."),
    ("delta", "DELTA", "Delta of epsilon, as of fedpatch run."),
    ("secure", "NAME", "Masked groups, as of fedpatch run."),
    ("group_size", "N", "Largest masked group, as of fedpatch run."),
    ("clip", "NORM", "Longest step of a masked update, as of fedpatch run."),
    ("prox", "MU", "Mu of FedProx, as of fedpatch run."),
    ("phases", "PART:N,...", "Parts of a round, as of fedpatch run."),
    ("personal", "KIND:LAMBDA", "Second copy of the model, as of fedpatch run."),
    ("finish", "PART:N,...", "Training of the personal model, as of fedpatch run."),
    (
        "attack",
        "KIND[:X]",
        "Attack of the bad clients: sign, labels, alie, ipm, noise, backdoor or copy.",
    ),
    ("bad", "SHARE", "Share of bad clients, which user accuracy leaves out."),
)
"""The terms of a study that are options: name, metavar, help. Types and defaults are those of Study."""
_COMMON_TERMS = {
    *("strategy", "private", "rounds", "target_ua", "seed", "learning_rate", "batch_size", "encoding", "aggregate"),
    *("dp", "noise_multiplier", "dp_clip", "secure", "personal", "attack", "bad"),
}
"""The terms whose options `--help` shows; `--help-all` shows the others too."""

Trackers = Annotated[
    list[str] | None,
    typer.Option("--tracker", metavar="NAME", help="Experiment tracker (repeatable), as of fedpatch run."),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for outcome.json, curve.csv and curve.svg.")]


def _options() -> Iterator[Parameter]:
    kinds = {**get_type_hints(Study), "noisy_fraction": float}
    defaults = {**DEFAULTS, "strategy": "fedavg-adam", "private": None}
    for name, metavar, help in _TERMS:
        default = defaults[name] if name in defaults else getattr(Study, name)
        kind = kinds[name] if default is not None else kinds[name] | None
        yield option(name, Annotated[kind, typer.Option(metavar=metavar, help=help)], default)


@with_options(tuple(_options()), "terms", rare={name for name, *_ in _TERMS} - _COMMON_TERMS)
def simulate(
    context: typer.Context,
    terms: dict[str, Any],
    task: TaskName = "digits",
    clients: Clients = 10,
    participation: Participation = 1.0,
    epochs: Epochs = 1,
    data: Data = "",
    data_root: DataRoot = None,
    workers: Workers = None,
    device: Device = "cpu",
    tracker: Trackers = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a fleet in memory and count the rounds to a target user accuracy.

    The clients train as devices do. The same options give the same result; with --out a repeated command continues. A
    missed target has exit code 0, and rounds_to_target is null. per-fedavg, pfedme and independent keep no patch.
    With --secure groups the default strategy is fedavg.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_of_its_own(context)
        _refuse_ranks(context.invoked_subcommand)
        return
    from fedpatch.simulator.experiment.user_study import study_of

    given = {**terms, "clients": clients, "participation": participation, "epochs": epochs, "data": data}
    if _is_default(context, "strategy"):
        given["strategy"] = None  # it depends on --secure
    study, _ = study_of(task, given)
    root = None if data_root is None else data_root.expanduser()
    _end(_carry_out(study, workers, device, out, root, tracker or ()), out, as_json)


app.callback()(with_debug(simulate))
command(app, "compare", example="fedpatch simulate compare --task digits --clients 10 --rounds 30 --seeds 2")(compare)
command(app, "fleet", example="fedpatch simulate fleet --devices 1000 --compare over_select=1.0,1.3")(fleet)


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT"


def _refuse_options_of_its_own(context: typer.Context) -> None:
    """Raise UsageError for options before a command of the group, which has options of its own."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in ("debug", "log_format"):
            raise UsageError(
                f"--{name.replace('_', '-')} stands before {context.invoked_subcommand!r}, which does not have it; "
                f"write it after that word, if fedpatch simulate {context.invoked_subcommand} --help has it"
            )


def _refuse_ranks(command_name: str) -> None:
    if rank_count() > 1:
        raise UsageError(
            f"fedpatch simulate {command_name} computes in one process or with --workers, not in ranks of torchrun; only "
            "fedpatch simulate without a further word does"
        )


def _carry_out(
    study: Study, workers: int | None, device: str, out: Path | None, root: Path | None, trackers: Sequence[str]
) -> Outcome:
    from fedpatch.shared.trackers.tracking import make_trackers
    from fedpatch.simulator.experiment.progress import make_progress
    from fedpatch.simulator.experiment.user_study import carry_out

    make_trackers(trackers)  # raises before anything is computed
    plain = logging.getLogger("fedpatch").isEnabledFor(logging.DEBUG)
    try:
        with (
            stoppable("" if rank_number() else STOPPING) as stopped,
            _progress_stream() as stream,
            make_progress(stream, study, plain=plain) as progress,
        ):
            watch = _Watch(progress, stopped)
            return carry_out(
                study,
                workers=workers,
                device=device,
                out=out,
                root=root,
                on_point=watch.take,
                stopped=watch.stopped,
                say=progress.say,
                trackers=trackers,
            )
    except KeyboardInterrupt:
        _print_resume_command(out)
        raise


@contextmanager
def _progress_stream() -> Iterator[TextIO]:
    """Yield the stream for the progress: stderr, or nothing in a rank other than 0."""
    if rank_number() == 0:
        yield sys.stderr
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        yield nowhere


class _Watch:
    """Shows every point, and reports a resumed study: points before the first call of `stopped` are from an earlier process."""

    def __init__(self, progress: StudyProgress, stopped: Callable[[], bool]) -> None:
        self._progress = progress
        self._stopped = stopped
        self._last: Point | None = None
        self._asked = False

    def take(self, point: Point) -> None:
        self._last = point
        self._progress.show(point)

    def stopped(self) -> bool:
        if not self._asked and self._last is not None:
            self._progress.say(f"goes on after round {self._last.round}")
        self._asked = True
        return self._stopped()


def _end(outcome: Outcome, out: Path | None, as_json: bool) -> NoReturn:
    from fedpatch.coordinator.cli.tables import print_table
    from fedpatch.simulator.experiment.output_folder import to_json

    if rank_number() == 0:
        if as_json:
            typer.echo(to_json(outcome))
        else:
            print_table(_table(outcome))
        if not outcome.complete:
            _print_resume_command(out)
    raise typer.Exit(0 if outcome.complete else EXIT_INTERRUPTED)


def _table(outcome: Outcome) -> Table:
    from rich.table import Table

    from fedpatch.shared.app.formatting import accuracy, duration, size
    from fedpatch.simulator.experiment.plots import title

    study, table = outcome.study, Table.grid(padding=(0, 2))
    table.add_row("study", f"{title(study)}, seed {study.seed}")
    if not outcome.points:
        return table
    last, reached = outcome.points[-1], outcome.rounds_to_target
    if study.target_ua is not None:
        words = f"not reached in {last.round} rounds" if reached is None else str(reached)
        table.add_row(f"rounds to {study.label} {accuracy(study.target_ua)}", words)
    table.add_row(study.measure_words, f"{accuracy(last.user_accuracy)} after {last.round} rounds")
    low = study.metric_goal == "max"
    table.add_row("10th percentile" if low else "90th percentile", accuracy(last.p10))
    table.add_row("lowest" if low else "highest", accuracy(last.lowest))
    if study.dp != "off":
        from fedpatch.simulator.clients.masked_uplink import policy_of_study

        policy = policy_of_study(study)
        assert policy is not None
        epsilon = policy.epsilon(last.round)
        table.add_row("epsilon", f"{epsilon:.4g} at delta {study.delta:g}, of a client in all {last.round} rounds")
    if outcome.attack is not None:
        table.add_row("attack", _attack_words(outcome, outcome.attack))
    if outcome.bytes_up_per_update and outcome.bytes_down_per_download:
        up, down = size(outcome.bytes_up_per_update), size(outcome.bytes_down_per_download)
        table.add_row("bytes", f"{up} an update, {down} a download in {study.encoding}")
    if outcome.bytes_to_target:
        table.add_row("bytes to target", f"{size(outcome.bytes_to_target)}, all clients, both ways")
    rounds_s = math.fsum(point.seconds for point in outcome.points if point.round)
    table.add_row("time", f"{duration(outcome.seconds)}, {rounds_s / max(1, last.round):.3g} s a round")
    return table


def _attack_words(outcome: Outcome, attack: AttackOutcome) -> str:
    words = f"{outcome.study.attack} by {len(attack.bad)} of {outcome.study.clients} clients"
    if attack.backdoor_success is not None:
        words += f", backdoor success {attack.backdoor_success:.0%}"
    if attack.found is not None:
        words += f", {attack.found:.0%} of them among those pulled most"
    return words


def _print_resume_command(out: Path | None) -> None:
    if out is None:
        say("nothing is kept to go on from; --out DIR keeps it")
    else:
        say(f"to go on, give the same command again: it takes up what is in {out}")
