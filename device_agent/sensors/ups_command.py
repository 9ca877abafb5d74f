"""Any other UPS: a program of the owner that prints `power=on|off` and `battery=NN` (docs/reference/conditions.md)."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.power_facts import Power, pairs_of, percent_of, truth_of
from fedpatch.device_agent.sensors.ups_output import output_of
from fedpatch.shared.errors import UsageError


@dataclass(frozen=True)
class UpsCommand:
    """Any program that prints `power=on|off` and `battery=NN`."""

    argv: tuple[str, ...]


def parse_command(text: str, rest: str) -> UpsCommand:
    """Return the program of the setting's text after `command:`. Raises UsageError with the whole text."""
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        raise UsageError(f"ups {text!r}: {str(error).lower()}; quote its arguments as a shell would") from error
    if not argv or not argv[0].startswith("/"):
        raise UsageError(f"ups {text!r}: the program needs its whole path; write command:/usr/local/bin/PROGRAM")
    if "\0" in rest:
        raise UsageError(f"ups {text!r}: a null byte cannot be part of a command; leave it out")
    return UpsCommand(argv)


def ask_command(ups: UpsCommand) -> Power:
    """Run the program. Raises FactUnavailable."""
    return read_command(output_of(ups.argv, "run it by hand to see why"), os.path.basename(ups.argv[0]))


def read_command(text: str, source: str) -> Power:
    """Parse the output of a program of the owner."""
    values = pairs_of(text, "=")
    power = truth_of(values.get("power"))
    if power is None:
        external: Fact[bool] = Fact.unknown(f"{source} prints neither power=on nor power=off")
    else:
        external = Fact(power, f"{source}: power={values['power']}")
    return Power(external, percent_of(values.get("battery"), f"{source}: battery"))
