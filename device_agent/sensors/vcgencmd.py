"""Asks the firmware of a Raspberry Pi by its program vcgencmd."""

from __future__ import annotations

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

_NO_PI = "neither the kernel nor vcgencmd says it (both are there on a Raspberry Pi)"


def vcgencmd(tree: SysFs, word: str, otherwise: str = _NO_PI) -> str:
    """Return the answer to a word, such as "measure_temp".

    Raises FactUnavailable without the program, with `otherwise` as the reason.
    """
    program = tree.program("vcgencmd")
    if program is None:
        raise FactUnavailable(otherwise)
    return run_program([program, word]).text
