"""The output of a program that knows a UPS."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.timeouts import FactUnavailable


def output_of(argv: Sequence[str], remedy: str) -> str:
    """Run a program; return its output. Raises FactUnavailable with the remedy if it fails."""
    ended = run_program(argv)
    if ended.code != 0:
        raise FactUnavailable(f"{os.path.basename(argv[0])} ended with exit code {ended.code}; {remedy}")
    return ended.text
