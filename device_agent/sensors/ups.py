"""Which UPS feeds the device, as its owner writes it, and what the answers of each kind of UPS mean.

`nut:NAME@HOST` (Network UPS Tools), `pisugar`, `pisugar:SOCKET` or `pisugar:HOST:PORT` (PiSugar's power manager) or
`command:/path/of/program ARGUMENTS`, for every other; docs/conditions.md says how to write such a program.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from device_agent.conditions.supplies import Power, parse_percent
from device_agent.facts import Fact
from shared.errors import UsageError

PISUGAR_HOST = "127.0.0.1"  # not its socket in /tmp: a service with a /tmp of its own does not see that
PISUGAR_PORT = 8423
PISUGAR_QUESTIONS = ("battery_power_plugged", "battery_charging", "battery")
WORDS = "nut:NAME@HOST, pisugar, pisugar:/SOCKET, pisugar:HOST:PORT or command:/PROGRAM ARGUMENTS"

_NUT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9\[][A-Za-z0-9_.:\[\]-]*")
_HOST_PORT = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


@dataclass(frozen=True)
class Nut:
    """A UPS that `upsc` is asked about: `target` is NAME@HOST."""

    target: str


@dataclass(frozen=True)
class PiSugar:
    """PiSugar's power manager: at a Unix socket, else at a TCP port."""

    socket: str = ""
    host: str = ""
    port: int = 0


@dataclass(frozen=True)
class Command:
    """Any program that prints `power=on|off` and `battery=NN`."""

    argv: tuple[str, ...]


Ups = Nut | PiSugar | Command


def parse_ups(text: str) -> Ups | None:
    """What the setting says; None where it is empty. Raises UsageError."""
    kind, colon, rest = text.strip().partition(":")
    if not kind and not colon:
        return None
    if kind == "nut" and _NUT.fullmatch(rest):
        return Nut(rest)
    if kind == "pisugar" and (not colon or rest):
        return _parse_pisugar(text, rest)
    if kind == "command":
        return _parse_command(text, rest)
    raise UsageError(f"ups {text!r} is not known; write {WORDS}")


def _parse_pisugar(text: str, rest: str) -> PiSugar:
    if not rest:
        return PiSugar(host=PISUGAR_HOST, port=PISUGAR_PORT)
    if rest.startswith("/"):
        return PiSugar(socket=rest)
    found = _HOST_PORT.fullmatch(rest)
    port = int(found["port"] or PISUGAR_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise UsageError(f"ups {text!r}: {rest!r} is neither a socket's path nor HOST:PORT; write {WORDS}")
    return PiSugar(host=found["host"].strip("[]"), port=port)


def _parse_command(text: str, rest: str) -> Command:
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        raise UsageError(f"ups {text!r}: {str(error).lower()}; quote its arguments as a shell would") from error
    if not argv or not argv[0].startswith("/"):
        raise UsageError(f"ups {text!r}: the program needs its whole path; write command:/usr/local/bin/PROGRAM")
    if "\0" in rest:
        raise UsageError(f"ups {text!r}: a null byte cannot be part of a command; leave it out")
    return Command(argv)


def read_upsc(text: str, source: str) -> Power:
    """What `upsc` printed: ups.status (OL: on line, OB: on battery) and battery.charge."""
    values = _pairs(text, ":")
    words = values.get("ups.status", "").split()
    if "OB" in words or "OL" in words:
        external: Fact[bool] = Fact("OB" not in words, f"{source}: {' '.join(words)}")
    else:
        external = Fact.unknown(f"{source}: ups.status is {values.get('ups.status', '')!r}, neither OL nor OB")
    return Power(external, _percent(values.get("battery.charge"), f"{source}: battery.charge"))


def read_pisugar(answers: Mapping[str, str], source: str) -> Power:
    """What PiSugar's power manager answered to each question; its oldest boards know charging, but not plugged."""
    said = [_truth(answers.get(one)) for one in ("battery_power_plugged", "battery_charging")]
    if all(one is None for one in said):
        external: Fact[bool] = Fact.unknown(f"{source} does not say whether power is plugged in")
    else:
        external = Fact(any(said), f"{source}: {'' if any(said) else 'not '}plugged in")
    return Power(external, _percent(answers.get("battery"), f"{source}: battery"))


def read_command(text: str, source: str) -> Power:
    """What a program of the owner printed."""
    values = _pairs(text, "=")
    power = _truth(values.get("power"))
    if power is None:
        external: Fact[bool] = Fact.unknown(f"{source} prints neither power=on nor power=off")
    else:
        external = Fact(power, f"{source}: power={values['power']}")
    return Power(external, _percent(values.get("battery"), f"{source}: battery"))


def _pairs(text: str, between: str) -> dict[str, str]:
    lines = (line.partition(between) for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, found, value in lines if found}


def _truth(text: str | None) -> bool | None:
    word = (text or "").strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _percent(text: str | None, source: str) -> Fact[float]:
    value = parse_percent((text or "").strip().removesuffix("%"))
    if value is not None:
        return Fact(value, source)
    return Fact.unknown(f"{source} is not told" if text is None else f"{source} is {text[:40]!r}, not a percentage")
