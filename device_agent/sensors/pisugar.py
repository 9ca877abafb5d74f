"""A PiSugar board, whose power manager answers at a socket: the setting `pisugar`, `pisugar:/SOCKET` or `pisugar:HOST:PORT`."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fedpatch.device_agent.sensors import commands
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.power_facts import Power, percent_of, truth_of
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

PISUGAR_HOST = "127.0.0.1"  # not its socket in /tmp: a service with a /tmp of its own does not see that
PISUGAR_PORT = 8423
PISUGAR_QUESTIONS = ("battery_power_plugged", "battery_charging", "battery")
_HOST_PORT = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
_MAX_ANSWER_BYTES = 4096


@dataclass(frozen=True)
class PiSugar:
    """PiSugar's power manager: at a Unix socket, else at a TCP port."""

    socket: str = ""
    host: str = ""
    port: int = 0


def parse_pisugar(rest: str) -> PiSugar | None:
    """Return the board of the setting's text after `pisugar:`; None if it is neither a socket's path nor HOST:PORT."""
    if not rest:
        return PiSugar(host=PISUGAR_HOST, port=PISUGAR_PORT)
    if rest.startswith("/"):
        return PiSugar(socket=rest)
    found = _HOST_PORT.fullmatch(rest)
    port = int(found["port"] or PISUGAR_PORT) if found else 0
    return PiSugar(host=found["host"].strip("[]"), port=port) if found and 0 < port < 65536 else None


def read_pisugar(answers: Mapping[str, str], source: str) -> Power:
    """Parse the answers of PiSugar's power manager; its oldest boards report charging, but not plugged."""
    answered = [truth_of(answers.get(one)) for one in ("battery_power_plugged", "battery_charging")]
    if all(one is None for one in answered):
        external: Fact[bool] = Fact.unknown(f"{source} does not say whether power is plugged in")
    else:
        external = Fact(any(answered), f"{source}: {'' if any(answered) else 'not '}plugged in")
    return Power(external, percent_of(answers.get("battery"), f"{source}: battery"))


def ask_pisugar(ups: PiSugar) -> Power:
    """Ask each question. Other lines (the button was pressed) are skipped. Raises FactUnavailable."""
    place = ups.socket or f"{ups.host}:{ups.port}"
    deadline = time.monotonic() + commands.LIMIT_S
    try:
        with _connect(ups) as line:
            answers = {one: _ask_line(line, one, deadline) for one in PISUGAR_QUESTIONS}
    except OSError as error:
        raise FactUnavailable(f"PiSugar's power manager at {place}: {error.strerror or error}; does it run?") from error
    return read_pisugar(answers, "PiSugar")


def _connect(ups: PiSugar) -> socket.socket:
    if not ups.socket:
        return socket.create_connection((ups.host, ups.port), timeout=commands.LIMIT_S)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(commands.LIMIT_S)
        line.connect(ups.socket)
    except BaseException:
        line.close()
        raise
    return line


def _ask_line(line: socket.socket, question: str, deadline: float) -> str:
    line.sendall(f"get {question}\n".encode())
    received = b""
    while len(received) < _MAX_ANSWER_BYTES:
        line.settimeout(max(0.01, deadline - time.monotonic()))
        piece = line.recv(1024)
        if not piece:
            return ""
        received += piece
        for one in received.split(b"\n")[:-1]:
            name, colon, value = one.decode("utf-8", "replace").partition(":")
            if colon and name.strip() == question:
                return value.strip()
            if name.strip().lower().startswith("invalid"):  # this board does not support the question
                return ""
    return ""
