"""The command `check-task` of `fedpatch` and `fedpatch-agent`. It imports torch only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.app.signals import interruptible


def add_check_task(app: typer.Typer, program: str) -> None:
    """Add the command to `app`, the command line of `program`."""

    @command(app, "check-task", example=f"{program} check-task two_moons_task:TASK --data sensor:3")
    def check_task(
        task: Annotated[str, typer.Argument(metavar="TASK", help="Task to check, by name or as module:attribute.")],
        data: Annotated[
            str, typer.Option(metavar="SPEC", help="Data spec of a device; default: device 0 of the task's demo.")
        ] = "",
        data_root: Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="Data sets; default: FEDPATCH_DATA, else the user's cache."),
        ] = None,
        private: Annotated[str, typer.Option(metavar="POLICY", help="Patch policy of the planned runs.")] = "affine",
        as_json: AsJson = False,
    ) -> None:
        """Check your own task with a device's data, without training; print a remedy for each fault.

        Speed and memory are those of this machine. Exit code 1: a check failed; 2: unknown task, policy or option.
        """
        from fedpatch.shared.tasks.task import data_root as usual_root
        from fedpatch.shared.tasks.task import find_task, use_data_root
        from fedpatch.shared.tensors.patch_policy import check_private

        found = find_task(task)
        check_private(private)
        root = usual_root() if data_root is None else data_root.expanduser()
        if found.frozen_file is not None:
            use_data_root(root)

        from fedpatch.shared.diagnostics.checks import conduct
        from fedpatch.shared.task_checks.check_task import Question, data_of, examine_task

        question = Question(found, data_of(found, data), root, private)
        with interruptible():
            raise typer.Exit(conduct(lambda checkup: examine_task(question, checkup), as_json=as_json))
