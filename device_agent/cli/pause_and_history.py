"""`fedpatch-agent pause`, `resume` and `history`, the commands of the device's owner."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.device_agent.cli.acting_as import acting_as_owner_of
from fedpatch.device_agent.cli.state_dir import existing, state_options
from fedpatch.device_agent.sensors.host import local_minute
from fedpatch.device_agent.state.history import HISTORY_NAME, KEEP_DAYS, read_history, read_with_damage
from fedpatch.device_agent.state.pause_file import end_pause, write_pause
from fedpatch.shared.app.clock import CLOCK_TOLERANCE_S, is_synchronised
from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.errors import StateError, UsageError

_DURATION = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


def add_owner(app: typer.Typer) -> None:
    """Give `app` the commands."""
    for add in (_add_pause, _add_resume, _add_history):
        add(app)


def parse_duration(text: str) -> float:
    """Return seconds for a text such as 30m, 2h or 3d; UsageError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise UsageError(f"--for {text!r}: is not a time; write minutes, hours or days, such as 30m, 2h or 3d")
    return int(found[1]) * _UNITS_S[found[2]]


def _check_clock(state_dir: Path) -> None:
    """Raise UsageError if the clock is before the newest entry of the history: once it is set, the pause would be over.

    Warn if no time server has set it.
    """
    synchronised, newest = is_synchronised(), 0.0
    with suppress(StateError):  # the doctor finds a history that cannot be read
        newest = max((entry.at for entry in read_history(state_dir)), default=0.0)
    if not synchronised and time.time() < newest - CLOCK_TOLERANCE_S:
        raise UsageError(
            f"the clock ({local_minute(time.time())}) is before {local_minute(newest)}, the newest time in {state_dir}: it is "
            "behind now, and the pause would be over once it is set, or it was ahead then; set it if it is wrong, else pause "
            "without --for"
        )
    if synchronised is False:
        typer.echo("warning: no time server has set the clock, which the end of the pause follows", err=True)


def _add_pause(app: typer.Typer) -> None:
    @command(app, "pause", example="fedpatch-agent pause --for 2h --config agent.toml")
    @state_options
    def pause(
        *,
        state_dir: Path,
        lasts: Annotated[
            str, typer.Option("--for", metavar="TIME", help="Length of the pause, such as 30m, 2h or 3d.")
        ] = "",
    ) -> None:
        """Pause this device: it takes no work and stops its work within seconds, in every mode of admission.

        Without --for the pause lasts until `resume`. It outlasts a restart.
        """
        until_s = None
        if lasts:
            until_s = time.time() + parse_duration(lasts)
            _check_clock(existing(state_dir))
        with acting_as_owner_of(existing(state_dir)):
            write_pause(state_dir, until_s)
        end = "until `fedpatch-agent resume`" if until_s is None else f"until {local_minute(until_s)}"
        typer.echo(f"paused {end}")


def _add_resume(app: typer.Typer) -> None:
    @command(app, "resume", example="fedpatch-agent resume --config agent.toml")
    @state_options
    def resume(*, state_dir: Path) -> None:
        """End the pause of this device."""
        with acting_as_owner_of(existing(state_dir)):
            ended = end_pause(state_dir)
        typer.echo("resumed" if ended else "it was not paused")


def _add_history(app: typer.Typer) -> None:
    @command(app, "history", example="fedpatch-agent history --config agent.toml")
    @state_options
    def history(*, state_dir: Path, as_json: AsJson = False) -> None:
        """List the work of this device, the oldest first: time, run, bytes, broker, declines with reasons, model.

        Entries are kept for 90 days if a time server sets the clock, and some 12,000 at most. Bytes are all that moved since
        the entry before, with TLS and acknowledgements.
        """
        from fedpatch.device_agent.cli.status import entry_in_words

        entries, damaged = read_with_damage(existing(state_dir))
        if damaged:
            typer.echo(f"warning: {state_dir / HISTORY_NAME}: damaged lines, which are left out: {damaged}", err=True)
        if as_json:
            typer.echo(json.dumps([asdict(one) for one in entries]))
            return
        for one in entries:
            typer.echo(entry_in_words(one))
        if not entries and not damaged:
            typer.echo(f"no history in {state_dir}: nothing was asked of this device in the last {KEEP_DAYS} days")
