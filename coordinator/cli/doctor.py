"""The command `fedpatch doctor`."""

from __future__ import annotations

import typer

from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.config.load import cli_options


def add_doctor(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "doctor", example="fedpatch doctor --config fedpatch.toml")
    @cli_options(RunSettings)
    def doctor(settings: RunSettings, as_json: AsJson = False) -> None:
        """Check before a run: installation, task, disk, memory, clock, broker, online devices; print remedies.

        Exit code 1: a check failed.
        """
        from fedpatch.coordinator.operations.doctor import examine
        from fedpatch.shared.diagnostics.checks import conduct

        with interruptible():
            raise typer.Exit(conduct(lambda checkup: examine(settings, checkup), as_json=as_json))
