"""The command line `fedpatch`: the coordinator's commands and the simulator's, which know nothing of each other."""

from __future__ import annotations

from typing import NoReturn

from fedpatch.coordinator.cli.main import NAME, app
from fedpatch.shared.app.command import add_lazy_command, run_app

__all__ = ["app", "main"]

add_lazy_command(app, "simulate", "fedpatch.simulator.cli:app")


def main() -> NoReturn:
    """Entry point; ends the process."""
    run_app(app, NAME)
