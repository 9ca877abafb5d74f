"""Reads the power supplies of the kernel, or asks the UPS that the owner named."""

from __future__ import annotations

import os
import socket
import time

from device_agent.conditions import programs
from device_agent.conditions.bounded import CannotTell
from device_agent.conditions.programs import run_program
from device_agent.conditions.supplies import ATTRIBUTES, Power, battery_percent, external_power, parse_supply
from device_agent.conditions.tree import Tree
from device_agent.conditions.ups import (
    PISUGAR_QUESTIONS,
    Command,
    Nut,
    PiSugar,
    Ups,
    read_command,
    read_pisugar,
    read_upsc,
)
from device_agent.facts import Fact

_SUPPLIES = "sys/class/power_supply"
_MAX_ANSWER_BYTES = 4096


def read_supplies(tree: Tree) -> Power:
    """What /sys/class/power_supply says, and systemd-ac-power where batteries leave it open. Raises CannotTell, OSError."""
    if not tree.exists("sys/class"):
        raise CannotTell("there is no /sys/class here, so nothing says what feeds this device")
    found = (
        parse_supply(name, {one: text for one in ATTRIBUTES if (text := tree.text(f"{_SUPPLIES}/{name}/{one}"))})
        for name in tree.names(_SUPPLIES)
    )
    supplies = [one for one in found if one is not None]
    external = external_power(supplies)
    program = None if external.known else tree.program("systemd-ac-power")
    if program is not None:
        code = run_program([program]).code
        external = Fact(code == 0, "systemd-ac-power") if code in (0, 1) else external
    return Power(external, battery_percent(supplies))


def ask_ups(ups: Ups, tree: Tree) -> Power:
    """What the owner's UPS says. Raises CannotTell where it says nothing."""
    match ups:
        case Nut(target):
            program = tree.program("upsc")
            if program is None:
                raise CannotTell("upsc is not installed (apt install nut-client)")
            return read_upsc(_output([program, target], f"is {target} the name of a UPS there?"), f"upsc {target}")
        case PiSugar():
            return read_pisugar(_ask_pisugar(ups), "PiSugar")
        case Command(argv):
            return read_command(_output(argv, "run it by hand to see why"), os.path.basename(argv[0]))


def _output(argv: tuple[str, ...] | list[str], mend: str) -> str:
    ended = run_program(argv)
    if ended.code != 0:
        raise CannotTell(f"{os.path.basename(argv[0])} ended with exit code {ended.code}; {mend}")
    return ended.text


def _ask_pisugar(ups: PiSugar) -> dict[str, str]:
    """One line for each question; lines that nobody asked for (somebody pressed the button) are passed over."""
    place = ups.socket or f"{ups.host}:{ups.port}"
    deadline = time.monotonic() + programs.LIMIT_S
    try:
        with _connect(ups) as line:
            return {one: _ask_line(line, one, deadline) for one in PISUGAR_QUESTIONS}
    except OSError as error:
        raise CannotTell(f"PiSugar's power manager at {place}: {error.strerror or error}; does it run?") from error


def _connect(ups: PiSugar) -> socket.socket:
    if not ups.socket:
        return socket.create_connection((ups.host, ups.port), timeout=programs.LIMIT_S)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(programs.LIMIT_S)
        line.connect(ups.socket)
    except BaseException:
        line.close()
        raise
    return line


def _ask_line(line: socket.socket, question: str, deadline: float) -> str:
    line.sendall(f"get {question}\n".encode())
    heard = b""
    while len(heard) < _MAX_ANSWER_BYTES:
        line.settimeout(max(0.01, deadline - time.monotonic()))
        piece = line.recv(1024)
        if not piece:
            return ""
        heard += piece
        for one in heard.split(b"\n")[:-1]:
            name, colon, value = one.decode("utf-8", "replace").partition(":")
            if colon and name.strip() == question:
                return value.strip()
            if name.strip().lower().startswith("invalid"):  # this board does not know the question
                return ""
    return ""
