"""Speed of a simulated round beside other ways to do the same work: `python -m benchmarks.training.simulation`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.device.growth import Size
from benchmarks.support.contests import Contest, Here, play_in_turn
from benchmarks.support.documents import Out, kept
from benchmarks.support.programs import measured_apart
from benchmarks.support.report import Report, command_line
from benchmarks.support.work import Work, make_work, write_work
from benchmarks.training.fedpatch_rounds import FedpatchRounds
from benchmarks.training.matrix_products import MatrixProducts
from benchmarks.training.peer_rounds import HOW_TO_GET, PEERS, PEERS_PYTHON, PeerRounds, version
from benchmarks.training.plain_loop import PlainLoop, PlainLoopWorkers
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import FedpatchError
from fedpatch.simulator.experiment.progress import status

# (clients, clients in a round)
SIZES = ((100, 100), (1_000, 1_000), (10_000, 10_000), (1_000, 100), (10_000, 100))
TOY_SIZES = ((10, 10), (20, 10))
GROWTH_ROUNDS = 3

# Two threads are many times slower on such small products if other programs run; a part of the clients is enough.
SHARE_OF_TWO_THREADS = 0.1

Say = Callable[[str], None]

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app,
    "simulation",
    example="python -m benchmarks.training.simulation --rounds 7 --out results/benchmarks/simulation.json",
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
    report = Report(command_line("benchmarks.training.simulation"), rounds)
    torch.set_num_threads(1)
    with interruptible(), status("the work is read", log.debug) as say:
        _compare(report, make_work("digits", 10) if toy else make_work("mnist", 200), peers_python, say)
        if cnn:
            _compare_cnn(report, say)
        for clients, cohort in TOY_SIZES if toy else SIZES:
            say(f"synthetic task: {clients} clients, {cohort} in a round")
            measured = measured_apart("benchmarks.device.growth", clients, cohort, 1 if toy else GROWTH_ROUNDS)
            report.growth.append(Size(**measured))
    text = kept(report.to_dict(), out)
    if as_json:
        typer.echo(text)
    else:
        report.print()


def _compare(report: Report, work: Work, peers_python: Path, say: Say) -> None:
    with ExitStack() as stack:
        contests: list[Contest] = []
        for contest in _own_contests(work):
            say(f"made ready: {contest.what}")
            stack.callback(contest.contestant.close)
            contests.append(contest)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-benchmark-")))
        write_work(work, folder)
        for contest in _peer_contests(report, folder, peers_python, say):
            stack.callback(contest.contestant.close)
            contests.append(contest)
        report.works.append((work, play_in_turn(contests, report.rounds, say=say)))


def _own_contests(work: Work) -> Iterator[Contest]:
    """Yield contests one by one, so that all are closed if the next cannot be made."""
    some = max(1, round(work.study.clients * SHARE_OF_TWO_THREADS))
    share = sum(work.steps[:some]) / work.client_steps

    few = f"2 threads (from {some} clients)"
    yield Contest("fedpatch", "fedpatch", FedpatchRounds(work))
    yield Contest("fedpatch-2", "fedpatch, 2 processes", FedpatchRounds(work, workers=2), processes=2)
    yield Contest("fedpatch-ua", "fedpatch, user accuracy included", FedpatchRounds(work, with_accuracy=True))
    yield Contest("plain", "plain PyTorch loop", Here(PlainLoop(work).play))
    yield Contest("plain-2", "plain PyTorch loop, 2 processes", PlainLoopWorkers(work, 2), processes=2)
    plain, products = Here(PlainLoop(work, some).play), Here(MatrixProducts(work, some).play)
    yield Contest("plain-2-threads", f"plain PyTorch loop, {few}", plain, threads=2, share=share)
    yield Contest("products", "matrix products alone", Here(MatrixProducts(work).play))
    yield Contest("products-2-threads", f"matrix products alone, {few}", products, threads=2, share=share)
    used = Here(MatrixProducts(work, used_only=True).play)
    yield Contest("products-used", "matrix products of used features alone", used)


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
        Contest("plain", "plain PyTorch loop", Here(PlainLoop(work).play)),
        Contest("plain-channels-last", "the same, channels last", Here(PlainLoop(work, channels_last=True).play)),
    ]
    report.works.append((work, play_in_turn(contests, 1, warm_up=False, say=say)))


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.training.simulation")
