"""How fast fedpatch simulates a round, beside other ways to do the same work: `python -m benchmarks.simulation`."""

from __future__ import annotations

import logging
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer
from rich.console import Console

from benchmarks.contests import Contest, Contestant, Here, play_in_turn
from benchmarks.documents import Out, kept
from benchmarks.fedpatch_rounds import FedpatchRounds
from benchmarks.growth import measure_apart
from benchmarks.matrix_products import MatrixProducts
from benchmarks.peer_rounds import HOW_TO_GET, PEERS, ROOT, PeerRounds, version
from benchmarks.plain_loop import PlainLoop, PlainLoopWorkers
from benchmarks.report import Report
from benchmarks.work import Work, make_work, write_work
from shared.command import AsJson, command, interruptible, run_app
from shared.errors import FedpatchError

NAME = "benchmarks.simulation"
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"

# (clients, clients in a round)
SIZES = ((100, 100), (1_000, 1_000), (10_000, 10_000), (1_000, 100), (10_000, 100))
TOY_SIZES = ((10, 10), (20, 10))
GROWTH_ROUNDS = 3

# Two threads on products this small are many times slower when anything else runs; a part of the clients tells as much.
SHARE_OF_TWO_THREADS = 0.1

Say = Callable[[str], None]

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, "simulation", example="python -m benchmarks.simulation --rounds 7 --out results/benchmarks/simulation.json"
)
def simulation(
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of each contestant; they take turns.")] = 5,
    toy: Annotated[bool, typer.Option("--toy", help="A few clients of task digits, to see that it works.")] = False,
    cnn: Annotated[bool, typer.Option("--cnn", help="Also one round of the CIFAR-10 CNN: minutes.")] = False,
    peers_python: Annotated[
        Path, typer.Option(metavar="PATH", help="Python of the environment that holds pfl and Flower.")
    ] = PEERS_PYTHON,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time a simulated round: fedpatch, a plain PyTorch loop, the matrix products alone, pfl and Flower.

    All do the same work: MNIST, 200 clients, all of them in each round, 15 steps of batch 20 each, the paper's 2NN.
    """
    rounds = min(rounds, 2) if toy else rounds
    report = Report(shlex.join(["python", "-m", NAME, *sys.argv[1:]]), rounds)
    torch.set_num_threads(1)
    with interruptible(), _status() as say:
        _compare(report, make_work("digits", 10) if toy else make_work("mnist", 200), peers_python, say)
        if cnn:
            _compare_cnn(report, say)
        for clients, cohort in TOY_SIZES if toy else SIZES:
            say(f"synthetic task: {clients} clients, {cohort} in a round")
            report.growth.append(measure_apart(clients, cohort, 1 if toy else GROWTH_ROUNDS))
    text = kept(report.to_dict(), out)
    if as_json:
        typer.echo(text)
    else:
        report.print()


def _compare(report: Report, work: Work, peers_python: Path, say: Say) -> None:
    with ExitStack() as stack:
        contests: list[Contest] = []

        def add(contest: Contest) -> None:
            stack.callback(contest.contestant.close)
            contests.append(contest)

        for make in _own_contests(work):
            contest = make()
            say(f"made ready: {contest.what}")
            add(contest)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-benchmark-")))
        write_work(work, folder)
        for contest in _peer_contests(report, folder, peers_python, say):
            add(contest)
        report.works.append((work, play_in_turn(contests, report.rounds, say=say)))


def _own_contests(work: Work) -> Iterator[Callable[[], Contest]]:
    """One after another, so that each is closed if the next cannot be made."""
    some = max(1, round(work.study.clients * SHARE_OF_TWO_THREADS))
    share = sum(work.steps[:some]) / work.client_steps

    def contest(
        name: str, what: str, contestant: Callable[[], Contestant], threads: int = 1, processes: int = 1
    ) -> Callable[[], Contest]:
        part = share if threads > 1 else 1.0
        return lambda: Contest(name, what, contestant(), threads, processes, part)

    def products(clients: int | None = None, used_only: bool = False) -> Contestant:
        return Here(MatrixProducts(work, clients, used_only=used_only).play)

    yield contest("fedpatch", "fedpatch", partial(FedpatchRounds, work))
    yield contest("fedpatch-2", "fedpatch, 2 processes", partial(FedpatchRounds, work, workers=2), processes=2)
    yield contest("fedpatch-ua", "fedpatch, user accuracy included", partial(FedpatchRounds, work, with_accuracy=True))
    yield contest("plain", "plain PyTorch loop", partial(PlainLoop, work))
    yield contest("plain-2", "plain PyTorch loop, 2 processes", partial(PlainLoopWorkers, work, 2), processes=2)
    yield contest(
        "plain-2-threads", f"plain PyTorch loop, 2 threads (from {some} clients)", partial(PlainLoop, work, some), 2
    )
    yield contest("products", "matrix products alone", products)
    yield contest(
        "products-2-threads", f"matrix products alone, 2 threads (from {some} clients)", partial(products, some), 2
    )
    yield contest("products-used", "matrix products of used features alone", partial(products, used_only=True))


def _peer_contests(report: Report, folder: Path, python: Path, say: Say) -> Iterator[Contest]:
    for peer in PEERS:
        found = version(peer.distribution, python)
        if found is None:
            report.not_measured[peer.what] = HOW_TO_GET
            continue
        report.peers[peer.distribution] = found
        for processes in (1, 2):
            name, what = peer.name, f"{peer.what} {found}"
            if processes > 1:
                name, what = f"{name}-{processes}", f"{what}, {processes} processes"
            say(f"made ready: {what}")
            try:
                yield Contest(name, what, PeerRounds(peer, python, folder, processes), processes=processes)
            except FedpatchError as error:
                report.not_measured[what] = str(error)


def _compare_cnn(report: Report, say: Say) -> None:
    say("CIFAR-10 is read")
    work = make_work("cifar10", 200)
    contests = [
        Contest("fedpatch", "fedpatch", FedpatchRounds(work)),
        Contest("plain", "plain PyTorch loop", PlainLoop(work)),
    ]
    report.works.append((work, play_in_turn(contests, 1, warm_up=False, say=say)))


@contextmanager
def _status() -> Iterator[Say]:
    """Tells on stderr how far it is: in a terminal, or with --debug anywhere."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield log.debug
        return
    with console.status("the work is read") as status:
        yield status.update


def main() -> NoReturn:
    """Runs the command."""
    run_app(app, f"python -m {NAME}")


if __name__ == "__main__":
    main()
