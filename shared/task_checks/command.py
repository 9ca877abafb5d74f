"""The command `check-task` of `fedpatch` and `fedpatch-agent`. It imports torch only when it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.app.signals import interruptible

if TYPE_CHECKING:
    from fedpatch.shared.tasks.task import Task
    from fedpatch.shared.wire.messages import TrainPlan


TaskName = Annotated[str, typer.Argument(metavar="TASK", help="Task to check, by name or as module:attribute.")]
Data = Annotated[str, typer.Option(metavar="SPEC", help="Data spec of a device; default: device 0 of the task's demo.")]
DataRoot = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Data sets; default: FEDPATCH_DATA, else the user's cache.")
]
Private = Annotated[str, typer.Option(metavar="POLICY", help="Patch policy of the planned runs.")]
PlanOf = Callable[["Task"], "TrainPlan | None"]
"""Returns the training plan of the planned runs of a task; None where the task names no learning rate for it."""


def add_check_task(app: typer.Typer, program: str) -> None:
    """Add the command of a device to `app`, the command line of `program`: it knows no strategy but the default's plan."""

    @command(app, "check-task", example=f"{program} check-task two_moons_task:TASK --data sensor:3")
    def check_task(
        task: TaskName,
        data: Data = "",
        data_root: DataRoot = None,
        private: Private = "affine",
        as_json: AsJson = False,
    ) -> None:
        """Check your own task with a device's data, also by some steps of the default strategy; print a remedy for each fault.

        Speed and memory are those of this machine. Exit code 1: a check failed; 2: unknown task, policy or option.
        """
        check_task_with(default_plan, task, data, data_root, private, as_json=as_json)


def default_plan(task: Task) -> TrainPlan | None:
    """Return the plan of the default strategy, fedavg-adam, for a task."""
    from fedpatch.shared.tensors.schema import MOMENTS
    from fedpatch.shared.wire.messages import TrainPlan

    rate = task.learning_rates.get("fedavg-adam", task.learning_rates.get("fedavg"))
    return None if rate is None else TrainPlan("adam", rate, task.batch_size, moments=MOMENTS)


def check_task_with(
    plan_of: PlanOf, task: str, data: str, data_root: Path | None, private: str, *, as_json: bool
) -> NoReturn:
    """Make all checks of a task, print them, and end the command.

    Args:
        plan_of: Returns the training plan of the planned runs.
        data: Data spec of a device; "" for the first device of the task's demo.
        data_root: The folder of data sets; None for the usual one.
        private: Patch policy of the planned runs.

    Raises:
        UsageError: The task, the policy or the plan is unknown.
    """
    from fedpatch.shared.tasks.task import find_task, use_data_root
    from fedpatch.shared.tensors.patch_policy import check_private

    found = find_task(task)
    check_private(private)
    plan = plan_of(found)
    root = _usual_data_root() if data_root is None else data_root.expanduser()
    if found.frozen_file is not None:
        use_data_root(root)

    from fedpatch.shared.diagnostics.checks import conduct
    from fedpatch.shared.task_checks.check_task import Question, data_of, examine_task

    question = Question(found, data_of(found, data), root, private, plan)
    with interruptible():
        raise typer.Exit(conduct(lambda checkup: examine_task(question, checkup), as_json=as_json))


def _usual_data_root() -> Path:
    from fedpatch.shared.tasks.task import data_root

    return data_root()
