"""The UPS that feeds the device, as the owner's setting names it; the answers of each kind become the same facts."""

from __future__ import annotations

from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.nut import Nut, ask_nut, parse_nut
from fedpatch.device_agent.sensors.pisugar import PiSugar, ask_pisugar, parse_pisugar
from fedpatch.device_agent.sensors.power_facts import Power
from fedpatch.device_agent.sensors.ups_command import UpsCommand, ask_command, parse_command
from fedpatch.shared.errors import UsageError

WORDS = "nut:NAME@HOST, pisugar, pisugar:/SOCKET, pisugar:HOST:PORT or command:/PROGRAM ARGUMENTS"
Ups = Nut | PiSugar | UpsCommand


def parse_ups(text: str) -> Ups | None:
    """Return the UPS of a setting; None where it is empty. Raises UsageError."""
    kind, colon, rest = text.strip().partition(":")
    if not kind and not colon:
        return None
    if kind == "command":
        return parse_command(text, rest)
    if kind == "nut" and (nut := parse_nut(rest)):
        return nut
    if kind == "pisugar" and (not colon or rest):
        if board := parse_pisugar(rest):
            return board
        raise UsageError(f"ups {text!r}: {rest!r} is neither a socket's path nor HOST:PORT; write {WORDS}")
    raise UsageError(f"ups {text!r} is not known; write {WORDS}")


def ask_ups(ups: Ups, tree: SysFs) -> Power:
    """Return the answer of the owner's UPS. Raises FactUnavailable where there is none."""
    match ups:
        case Nut():
            return ask_nut(ups, tree)
        case PiSugar():
            return ask_pisugar(ups)
        case UpsCommand():
            return ask_command(ups)
