"""The command `fedpatch check-task`: the checks of a task, with some training steps of the planned run's strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.task_checks.command import Data, DataRoot, Private, TaskName, check_task_with

if TYPE_CHECKING:
    from fedpatch.shared.tasks.task import Task
    from fedpatch.shared.wire.messages import TrainPlan


def add_check_task(app: typer.Typer, program: str) -> None:
    """Add the command to `app`, the command line of `program`."""

    @command(app, "check-task", example=f"{program} check-task two_moons_task:TASK --data sensor:3")
    def check_task(
        task: TaskName,
        data: Data = "",
        data_root: DataRoot = None,
        private: Private = "affine",
        strategy: Annotated[
            str, typer.Option(metavar="NAME", help="Strategy of the planned runs; default: fedavg-adam.")
        ] = "fedavg-adam",
        learning_rate: Annotated[
            float | None,
            typer.Option(min=1e-12, max=1e3, metavar="RATE", help="Their learning rate; default: the task's."),
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Check your own task with a device's data, by some training steps of a run's strategy; print a remedy for each fault.

        The last check is the coordinator's check of an update. Speed and memory are those of this machine. Exit code 1: a
        check failed; 2: unknown task, policy, strategy or option.
        """
        check_task_with(
            lambda found: _plan(found, strategy, learning_rate), task, data, data_root, private, as_json=as_json
        )


def _plan(task: Task, strategy: str, learning_rate: float | None) -> TrainPlan | None:
    """Return the training plan of a run; None where the task names no learning rate for its strategy."""
    from fedpatch.coordinator.find_strategy import find_strategy, rate_of
    from fedpatch.coordinator.settings import RunSettings

    found, usual = find_strategy(strategy), RunSettings()
    rate = learning_rate or rate_of(task.learning_rates, found)
    return None if rate is None else found.plan(rate, task.batch_size, usual.epochs, usual.steps, usual.seed)
