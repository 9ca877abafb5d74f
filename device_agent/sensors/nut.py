"""A UPS of Network UPS Tools, which `upsc` is asked about: the setting `nut:NAME@HOST`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.power_facts import Power, pairs_of, percent_of
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.device_agent.sensors.ups_output import output_of

_TARGET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9\[][A-Za-z0-9_.:\[\]-]*")


@dataclass(frozen=True)
class Nut:
    """A UPS that `upsc` is asked about: `target` is NAME@HOST."""

    target: str


def parse_nut(rest: str) -> Nut | None:
    """Return the UPS of the setting's text after `nut:`; None if it is not NAME@HOST."""
    return Nut(rest) if _TARGET.fullmatch(rest) else None


def ask_nut(ups: Nut, tree: SysFs) -> Power:
    """Ask `upsc`. Raises FactUnavailable."""
    program = tree.program("upsc")
    if program is None:
        raise FactUnavailable("upsc is not installed (apt install nut-client)")
    return read_upsc(
        output_of([program, ups.target], f"is {ups.target} the name of a UPS there?"), f"upsc {ups.target}"
    )


def read_upsc(text: str, source: str) -> Power:
    """Parse the output of `upsc`: ups.status (OL: on line, OB: on battery) and battery.charge."""
    values = pairs_of(text, ":")
    words = values.get("ups.status", "").split()
    if "OB" in words or "OL" in words:
        external: Fact[bool] = Fact("OB" not in words, f"{source}: {' '.join(words)}")
    else:
        external = Fact.unknown(f"{source}: ups.status is {values.get('ups.status', '')!r}, neither OL nor OB")
    return Power(external, percent_of(values.get("battery.charge"), f"{source}: battery.charge"))
