"""Asks the firmware of a Raspberry Pi by its program vcgencmd."""

from __future__ import annotations

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

_NO_PI = "neither the kernel nor vcgencmd says it (both are there on a Raspberry Pi)"


def vcgencmd(tree: SysFs, word: str, otherwise: str = _NO_PI) -> str:
    """Ask the firmware.

    Args:
        word: Command of the program, such as "measure_temp".
        otherwise: Reason of the error for a machine without the program.

    Returns:
        The answer.

    Raises:
        FactUnavailable: The program is absent, fails or is late.
    """
    program = tree.program("vcgencmd")
    if program is None:
        raise FactUnavailable(otherwise)
    return run_program([program, word]).text
