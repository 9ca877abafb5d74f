"""The user's own simulation from Python or the command line: terms, output folder, progress, background thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

from fedpatch.shared.app.signals import stoppable
from fedpatch.shared.app.terminal import can_draw, plain_console
from fedpatch.shared.errors import FedpatchError, UsageError, unknown_name
from fedpatch.shared.scripting.jobs import BackgroundJob, Cancellation
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.trackers.tracking import make_trackers
from fedpatch.simulator.experiment.options import make_study, require_federated, terms
from fedpatch.simulator.experiment.point_tracking import tracked
from fedpatch.simulator.experiment.progress import StudyProgress, make_progress
from fedpatch.simulator.spec.compute import STOPPING, device_name, worker_count
from fedpatch.simulator.spec.study import BASELINES, Outcome, Point, Study

if TYPE_CHECKING:
    from fedpatch.simulator.experiment.output_folder import StudyFolder

Stopped = Callable[[], bool]


def study_of(task: str | Task, given: Mapping[str, Any]) -> tuple[Study, Task | None]:
    """Make a study of the given terms; the others have the defaults of the task and the paper.

    Args:
        task: The task: its name, module:attribute, or a `Task`.
        given: Terms by the names of `make_study`; None means the default. The default `strategy` is fedavg-adam, with masked
            groups fedavg; the default `private` is affine, or none if the strategy keeps no patch.

    Returns:
        The study, and the task if it cannot be found by name.

    Raises:
        UsageError: A term is unknown or wrong.
    """
    known = {name: value for name, value in given.items() if value is not None}
    for name in known:
        if name not in terms():
            raise unknown_name("term", name, sorted(terms()))
    masked = known.get("secure", "off") != "off"
    strategy = known.setdefault("strategy", "fedavg" if masked else "fedavg-adam")
    known.setdefault("private", "none" if strategy in BASELINES else "affine")
    known.setdefault("clients", 10)
    found, ref, own = (task, task.name, task) if isinstance(task, Task) else (find_task(task), task, None)
    study = make_study(task=found, task_ref=ref, **known)
    require_federated(study)
    return study, own


def carry_out(  # noqa: PLR0913  (hooks of the caller, each by name)
    study: Study,
    *,
    workers: int | None = None,
    device: str = "cpu",
    out: Path | None = None,
    root: Path | None = None,
    on_point: Callable[[Point], None] = lambda point: None,
    stopped: Stopped = lambda: False,
    say: Callable[[str], object] = lambda line: None,
    task: Task | None = None,
    trackers: Sequence[str] = (),
) -> Outcome:
    """Simulate a study, or resume the unfinished study in `out`, and write its files.

    Args:
        workers: Number of processes; None: one for each processor.
        device: "cpu" or "cuda".
        out: Folder for outcome, curve and pictures; None: no files.
        root: Folder for data files; None: `data_root()`.
        on_point: Called with each point of the curve.
        stopped: Called between rounds; True stops the simulation.
        say: Called with a line for the user.
        task: The task if it cannot be found by name. It is simulated in this process.
        trackers: Experiment trackers that get each round, NAME or NAME:PLACE.

    Returns:
        The outcome; not complete if it was stopped.

    Raises:
        FedpatchError: The task, the data or the terms do not fit, or the training diverged.
    """
    from fedpatch.simulator.experiment.ranks import joined_ranks
    from fedpatch.simulator.experiment.simulation import simulate

    processes, name = worker_count(workers), device_name(device)
    with joined_ranks() as ranks:
        opened: list[StudyFolder] = []
        finished = ranks.agree(lambda: _finished_outcome(out, study, opened))
        if finished is not None:
            say(f"{out} holds the outcome of this study already; choose another --out to compute it anew")
            return finished
        try:
            with tracked(study, trackers if ranks.first else (), on_point, stopped, say) as (take, asked):
                outcome = simulate(
                    study,
                    workers=1 if task is not None else processes,
                    device=name,
                    on_point=take,
                    stopped=asked,
                    saved=opened[0].unfinished if opened else None,
                    root=root,
                    task=task,
                    ranks=ranks,
                )
        except (FedpatchError, OSError):
            raise
        except Exception as error:  # the user's model, loss and metric may raise any exception
            raise FedpatchError(
                f"task {study.task!r} failed in the simulation: {type(error).__name__}: {error}; --debug, or __cause__ in "
                "Python, shows where"
            ) from error
        for folder in opened:
            folder.write(outcome)
        return outcome


def _finished_outcome(out: Path | None, study: Study, opened: list[StudyFolder]) -> Outcome | None:
    """Append the folder `out` to `opened`; return its outcome, after writing missing files, if it is complete."""
    from fedpatch.simulator.experiment.output_folder import StudyFolder

    if out is None:
        return None
    folder = StudyFolder(out, study)
    opened.append(folder)
    if folder.outcome is None or not folder.outcome.complete:
        return None
    if not folder.whole:
        with suppress(OSError):  # on a read-only disk the outcome is returned all the same
            folder.write(folder.outcome)
    return folder.outcome


def simulate(
    task: str | Task = "digits",
    *,
    clients: int = 10,
    rounds: int = 500,
    target_ua: float | None = None,
    progress: bool | None = None,
    out: str | Path | None = None,
    **more: Any,
) -> Outcome:
    """Simulate a fleet in memory, as `fedpatch simulate` does.

    An interrupt (Ctrl-C, the notebook's stop button) ends the simulation after the round; a second interrupt raises
    KeyboardInterrupt. The same terms give the same result as the command.

    Args:
        task: The task: its name, module:attribute, or a `Task`, which is simulated in this process.
        rounds: Rounds after which the simulation ends.
        target_ua: User accuracy at which the simulation ends earlier.
        progress: Whether to show the progress; None: if a terminal or notebook can show it.
        out: Folder for outcome.json, curve.csv and curve.svg. The same call continues an interrupted simulation there.
        more: Further terms by the names of the command's options, such as `strategy`, `private`, `participation`, `seed`,
            `data` or `secure`; and `workers`, `device`, `data_root`, and `trackers`, a sequence of NAME or NAME:PLACE.

    Returns:
        The outcome, whose `complete` is False after an interrupt.

    Raises:
        UsageError: A term is unknown or wrong.
        DataError: The data cannot be used.
        FedpatchError: The task failed.

    Example:
        >>> import fedpatch
        >>> outcome = fedpatch.simulate("digits", clients=4, rounds=1, strategy="fedavg", progress=False, workers=1)
        >>> [point.round for point in outcome.points], outcome.complete
        ([0, 1], True)
    """
    work = _Work(task, {**more, "clients": clients, "rounds": rounds, "target_ua": target_ua}, out)
    with ExitStack() as stack:
        shown = stack.enter_context(_shown(work.study, progress))
        stopped: Stopped = lambda: False  # noqa: E731 - replaced in the main thread
        if current_thread() is main_thread():
            stopped = stack.enter_context(stoppable(STOPPING))
        return work.do(shown.show if shown else lambda point: None, stopped)


def start_simulation(
    task: str | Task = "digits",
    *,
    clients: int = 10,
    rounds: int = 500,
    target_ua: float | None = None,
    out: str | Path | None = None,
    **more: Any,
) -> BackgroundJob[Point, Outcome]:
    """Start a simulation in a thread of its own. Its events are the points of the curve.

    Simulations of one process alternate, round by round; each gives the same result as alone.

    Args:
        task: As of `simulate`.
        rounds: Rounds after which the simulation ends.
        target_ua: User accuracy at which the simulation ends earlier.
        out: As of `simulate`.
        more: As of `simulate`.

    Returns:
        The job. `cancel` ends it after the round, with an outcome whose `complete` is False.

    Raises:
        UsageError: A term is unknown or wrong.

    Example:
        >>> import fedpatch
        >>> with fedpatch.start_simulation(clients=4, rounds=1, strategy="fedavg", workers=1) as job:
        ...     for point in job:
        ...         print("round", point.round)
        round 0
        round 1
        >>> job.result().complete
        True
    """
    work = _Work(task, {**more, "clients": clients, "rounds": rounds, "target_ua": target_ua}, out)

    def perform(emit: Callable[[Point], None], cancellation: Cancellation) -> Outcome:
        return work.do(emit, cancellation.requested)

    return BackgroundJob(f"simulation of {work.study.task}", perform)


class _Work:
    """A simulation with checked terms."""

    def __init__(self, task: str | Task, given: dict[str, Any], out: str | Path | None) -> None:
        self._compute = {
            name: given.pop(name) for name in ("workers", "device", "data_root", "trackers") if name in given
        }
        self.study, self._task = study_of(task, given)
        self._out = None if out is None else Path(out).expanduser()
        worker_count(self._compute.get("workers"))
        device_name(self._compute.get("device", "cpu"))
        make_trackers(_sequence(self._compute.get("trackers", ())))

    def do(self, on_point: Callable[[Point], None], stopped: Stopped) -> Outcome:
        root = self._compute.get("data_root")
        return carry_out(
            self.study,
            workers=self._compute.get("workers"),
            device=self._compute.get("device", "cpu"),
            out=self._out,
            root=None if root is None else Path(root).expanduser(),
            on_point=on_point,
            stopped=stopped,
            say=lambda line: print(line, file=sys.stderr),  # noqa: T201 - a line for the user
            task=self._task,
            trackers=self._compute.get("trackers", ()),
        )


def _sequence(trackers: Sequence[str]) -> Sequence[str]:
    """Return the trackers; UsageError for a single text, whose letters would be taken for names."""
    if isinstance(trackers, str):
        raise UsageError(f"trackers: {trackers!r} is not a sequence; write [{trackers!r}]")
    return trackers


def _shown(study: Study, progress: bool | None) -> AbstractContextManager[StudyProgress | None]:
    if progress is None:
        progress = can_draw(plain_console(sys.stderr))
    return make_progress(sys.stderr, study) if progress else nullcontext()
