"""The command `fedpatch-agent bus`."""

from __future__ import annotations

import logging

import typer

from fedpatch.device_agent.bus.settings import BusSettings
from fedpatch.shared.app.command import command
from fedpatch.shared.config.load import cli_options


def add_bus(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(
        app,
        "bus",
        example="fedpatch-agent bus --broker mqtt://127.0.0.1:1883 --serve 'sensors/vibration -> home/vibration'",
        log_level=logging.INFO,
    )
    @cli_options(BusSettings)
    def bus(settings: BusSettings) -> None:
        """Show this device to Home Assistant, and let its personal model answer on an MQTT bus, until SIGTERM or Ctrl-C.

        A process beside the agent, with own credentials, at any broker. Without --serve it publishes state, user
        accuracy, round, count of examples and reasons only.
        """
        from fedpatch.device_agent.bus.service import run_bus

        raise typer.Exit(run_bus(settings))
