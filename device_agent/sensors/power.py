"""Power of the device from the kernel's power supplies: external power, and the charge of its battery.

The attributes are those of /sys/class/power_supply (Linux, Documentation/ABI/testing/sysfs-class-power).

The owner's setting names the UPS that feeds the device; the answers of each kind of UPS become the same facts.

The setting is `nut:NAME@HOST` (Network UPS Tools), `pisugar`, `pisugar:SOCKET` or `pisugar:HOST:PORT` (PiSugar's power
manager), or `command:/path/of/program ARGUMENTS` for any other UPS; docs/reference/conditions.md describes such a program.

Reads the power supplies of the kernel, or asks the UPS that the owner named.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedpatch.device_agent.sensors import commands
from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.shared.errors import UsageError

ATTRIBUTES = (
    "type",
    "scope",
    "online",
    "present",
    "status",
    "capacity",
    "energy_now",
    "energy_full",
    "charge_now",
    "charge_full",
)
_STORES = ("Battery", "UPS")
_PLACE = "/sys/class/power_supply"


class Power(NamedTuple):
    """The two facts about power, from one source."""

    external: Fact[bool]
    battery_percent: Fact[float]


@dataclass(frozen=True, kw_only=True)
class PowerSupply:
    """One power supply that feeds this device; None: unknown.

    `online`: whether power comes in. `energy` and `charge`: the present and the full amount, in µWh and µAh.
    """

    name: str
    stores: bool
    online: bool | None
    status: str
    capacity_percent: float | None
    energy: tuple[float, float] | None
    charge: tuple[float, float] | None


def parse_percent(text: str | None) -> float | None:
    """A number from 0 to 100; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0.0 <= value <= 100.0 else None


def parse_supply(name: str, attributes: Mapping[str, str]) -> PowerSupply | None:
    """Parse a power supply; None if it feeds another device (a wireless mouse has its own battery), or is not plugged in."""
    kind = attributes.get("type", "")
    if attributes.get("scope", "").lower() == "device" or not kind:
        return None
    stores = kind in _STORES
    if stores and attributes.get("present") == "0":
        return None
    online = _number(attributes.get("online"))
    return PowerSupply(
        name=name,
        stores=stores,
        online=None if online is None else online > 0,
        status=attributes.get("status", ""),
        capacity_percent=parse_percent(attributes.get("capacity")),
        energy=_contents(attributes, "energy"),
        charge=_contents(attributes, "charge"),
    )


def external_power(supplies: Sequence[PowerSupply]) -> Fact[bool]:
    """Return whether power comes in from outside; UNKNOWN where the state of a battery is not known.

    A running machine without any battery has external power, also if an unused socket reports none.
    """
    inlets = [one for one in supplies if not one.stores]
    batteries = [one for one in supplies if one.stores]
    for one in inlets:
        if one.online:
            return Fact(True, f"{_PLACE}/{one.name}: online")
    for one in batteries:
        if one.status == "Charging":
            return Fact(True, f"{_PLACE}/{one.name}: charging")
    if not batteries:
        return Fact.assumed(True, f"no battery in {_PLACE}, so it runs on mains")
    for one in inlets:
        if one.online is False:
            return Fact(False, f"{_PLACE}/{one.name}: not online")
    return _by_batteries(batteries)


def _by_batteries(batteries: Sequence[PowerSupply]) -> Fact[bool]:
    """Decide by the batteries: none of them charges, and no inlet has a state."""
    for one in batteries:
        if one.status == "Discharging":
            return Fact(False, f"{_PLACE}/{one.name}: discharging")
    if all(one.status in ("Full", "Not charging") for one in batteries):
        return Fact(True, f"{_PLACE}/{batteries[0].name}: {batteries[0].status.lower()}")
    return Fact.unknown(f"{_PLACE}/{batteries[0].name} does not say whether it discharges")


def battery_percent(supplies: Sequence[PowerSupply]) -> Fact[float]:
    """Return the charge of all batteries together, weighted by capacity; UNKNOWN where there are none."""
    batteries = [one for one in supplies if one.stores]
    if not batteries:
        return Fact.unknown(f"no battery in {_PLACE}")
    names = " and ".join(one.name for one in batteries)
    if len(batteries) == 1 and batteries[0].capacity_percent is not None:
        return Fact(batteries[0].capacity_percent, f"{_PLACE}/{names}: capacity")
    for what in ("energy", "charge"):
        full = _fullness(getattr(one, what) for one in batteries)
        if full is not None:
            return Fact(full, f"{_PLACE}/{names}: {what}")
    shares = [one.capacity_percent for one in batteries if one.capacity_percent is not None]
    if len(shares) == len(batteries):
        return Fact(sum(shares) / len(shares), f"{_PLACE}/{names}: mean capacity")
    return Fact.unknown(f"{_PLACE}/{names}: no capacity, energy or charge that makes sense")


def _fullness(contents: Iterable[tuple[float, float] | None]) -> float | None:
    known = list(contents)
    pairs = [one for one in known if one is not None]
    if len(pairs) < len(known):
        return None
    return min(100.0, 100.0 * sum(now for now, _ in pairs) / sum(full for _, full in pairs))


def _contents(attributes: Mapping[str, str], what: str) -> tuple[float, float] | None:
    now, full = _number(attributes.get(f"{what}_now")), _number(attributes.get(f"{what}_full"))
    return None if now is None or full is None or now < 0 or full <= 0 else (now, full)


def _number(text: str | None) -> float | None:
    """Parse a whole number in the kernel's form, and no longer than the kernel writes."""
    digits = (text or "").strip()
    bare = digits.removeprefix("-")
    return float(int(digits)) if bare.isascii() and bare.isdigit() and len(bare) <= 18 else None


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
class UpsCommand:
    """Any program that prints `power=on|off` and `battery=NN`."""

    argv: tuple[str, ...]


Ups = Nut | PiSugar | UpsCommand


def parse_ups(text: str) -> Ups | None:
    """The parsed setting; None where it is empty. Raises UsageError."""
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


def _parse_command(text: str, rest: str) -> UpsCommand:
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        raise UsageError(f"ups {text!r}: {str(error).lower()}; quote its arguments as a shell would") from error
    if not argv or not argv[0].startswith("/"):
        raise UsageError(f"ups {text!r}: the program needs its whole path; write command:/usr/local/bin/PROGRAM")
    if "\0" in rest:
        raise UsageError(f"ups {text!r}: a null byte cannot be part of a command; leave it out")
    return UpsCommand(argv)


def read_upsc(text: str, source: str) -> Power:
    """Parse the output of `upsc`: ups.status (OL: on line, OB: on battery) and battery.charge."""
    values = _pairs(text, ":")
    words = values.get("ups.status", "").split()
    if "OB" in words or "OL" in words:
        external: Fact[bool] = Fact("OB" not in words, f"{source}: {' '.join(words)}")
    else:
        external = Fact.unknown(f"{source}: ups.status is {values.get('ups.status', '')!r}, neither OL nor OB")
    return Power(external, _percent(values.get("battery.charge"), f"{source}: battery.charge"))


def read_pisugar(answers: Mapping[str, str], source: str) -> Power:
    """Parse the answers of PiSugar's power manager; its oldest boards report charging, but not plugged."""
    answered = [_truth(answers.get(one)) for one in ("battery_power_plugged", "battery_charging")]
    if all(one is None for one in answered):
        external: Fact[bool] = Fact.unknown(f"{source} does not say whether power is plugged in")
    else:
        external = Fact(any(answered), f"{source}: {'' if any(answered) else 'not '}plugged in")
    return Power(external, _percent(answers.get("battery"), f"{source}: battery"))


def read_command(text: str, source: str) -> Power:
    """Parse the output of a program of the owner."""
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
    return Fact.unknown(f"{source} is missing" if text is None else f"{source} is {text[:40]!r}, not a percentage")


_SUPPLIES = "/sys/class/power_supply"
_MAX_ANSWER_BYTES = 4096


def read_supplies(tree: SysFs) -> Power:
    """Read /sys/class/power_supply; use systemd-ac-power if batteries do not decide. Raises FactUnavailable, OSError."""
    if not tree.exists("/sys/class"):
        raise FactUnavailable("there is no /sys/class here, so the power source of this device is unknown")
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


def ask_ups(ups: Ups, tree: SysFs) -> Power:
    """The answer of the owner's UPS. Raises FactUnavailable where there is none."""
    match ups:
        case Nut(target):
            program = tree.program("upsc")
            if program is None:
                raise FactUnavailable("upsc is not installed (apt install nut-client)")
            return read_upsc(_output([program, target], f"is {target} the name of a UPS there?"), f"upsc {target}")
        case PiSugar():
            return read_pisugar(_ask_pisugar(ups), "PiSugar")
        case UpsCommand(argv):
            return read_command(_output(argv, "run it by hand to see why"), os.path.basename(argv[0]))


def _output(argv: tuple[str, ...] | list[str], remedy: str) -> str:
    ended = run_program(argv)
    if ended.code != 0:
        raise FactUnavailable(f"{os.path.basename(argv[0])} ended with exit code {ended.code}; {remedy}")
    return ended.text


def _ask_pisugar(ups: PiSugar) -> dict[str, str]:
    """Ask each question; return the answers. Other lines (the button was pressed) are skipped."""
    place = ups.socket or f"{ups.host}:{ups.port}"
    deadline = time.monotonic() + commands.LIMIT_S
    try:
        with _connect(ups) as line:
            return {one: _ask_line(line, one, deadline) for one in PISUGAR_QUESTIONS}
    except OSError as error:
        raise FactUnavailable(f"PiSugar's power manager at {place}: {error.strerror or error}; does it run?") from error


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
