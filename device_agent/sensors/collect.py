"""All facts of one moment: all sources are asked at once; facts of a source that does not answer in time are unknown.

The link is asked first, since the network's name and its costs belong to the interface of the route. So an observation takes
two time limits at most, and a few milliseconds if every source answers. A source that hangs delays only the first
observation: later ones do not wait for it until it has answered again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpatch.device_agent.sensors.clock import read_clock
from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.host import PAUSE_FILE, read_disk, read_load, read_memory, read_pause
from fedpatch.device_agent.sensors.network_link import Route, read_link
from fedpatch.device_agent.sensors.network_manager import NmState, ask_network_manager, bus_address
from fedpatch.device_agent.sensors.power_source import read_power
from fedpatch.device_agent.sensors.temperature import read_temperature
from fedpatch.device_agent.sensors.timeouts import FactUnavailable, TimedQuestion
from fedpatch.device_agent.sensors.under_voltage import read_supply
from fedpatch.device_agent.sensors.ups import parse_ups
from fedpatch.device_agent.sensors.wifi import read_network
from fedpatch.shared.wire.reason_codes import LinkKind

SOURCE_LIMIT_S = 2.0

_Found = Sequence[Fact[Any]]
"""In the order of the fields of Facts that they are for."""


class FactCollector:
    """Collects facts about the device. For one caller at a time; nothing is written, and nothing leaves the device.

    `ups` is the owner's setting (device_agent.sensors.ups). Tests give another `root` and `bus`, and another `interface` of
    the route to a host.
    """

    def __init__(
        self,
        *,
        broker_host: str,
        state_dir: Path,
        root: Path = Path("/"),
        ups: str = "",
        bus: str | None = None,
        interface: Callable[[], str] | None = None,
    ) -> None:
        self._tree = tree = SysFs(root)
        self._bus = bus_address(tree, bus)
        self._interface = interface or Route(broker_host).interface
        self._link = TimedQuestion("the route to the broker", self._find_link)
        self._network = TimedQuestion("the network", self._find_network, _nothing_known)
        self._manager = TimedQuestion("NetworkManager", self._ask_manager)
        pause_file = state_dir / PAUSE_FILE
        named = parse_ups(ups)
        others: tuple[tuple[str, Callable[[], _Found], tuple[str, ...]], ...] = (
            (
                "power" if named is None else "the UPS",
                lambda: read_power(named, tree),
                ("external_power", "battery_percent"),
            ),
            ("the supply", lambda: read_supply(tree), ("under_voltage", "throttled")),
            ("temperature", lambda: (read_temperature(tree),), ("temperature_c",)),
            ("the kernel", lambda: (read_load(tree), read_memory(tree)), ("load_per_cpu", "free_memory_mib")),
            ("the disk", lambda: (read_disk(state_dir), read_pause(pause_file)), ("free_disk_mib", "paused")),
            ("the clock", lambda: (read_clock(tree),), ("clock_set",)),
        )
        self._others = tuple((fields, TimedQuestion(name, find, _nothing_known)) for name, find, fields in others)

    def observe(self) -> Facts:
        """Return the facts now; a fact not found within about four seconds is unknown, with the reason. Never raises."""
        began_s = time.monotonic()
        self._link.begin()
        for _, source in self._others:
            source.begin()
        facts = self._observe_link()
        for fields, source in self._others:
            facts |= _answer(source, fields, began_s)
        return Facts(**facts)

    def _observe_link(self) -> dict[str, Fact[Any]]:
        try:
            interface, link = self._link.answer(SOURCE_LIMIT_S)
        except FactUnavailable as error:
            return {name: Fact.unknown(str(error)) for name in ("link", "ssid", "metered")}
        began_s = time.monotonic()
        self._network.begin(interface, link)
        return {"link": link, **_answer(self._network, ("ssid", "metered"), began_s)}

    def _find_link(self) -> tuple[str, Fact[LinkKind]]:
        interface = self._interface()
        return interface, read_link(self._tree, interface)

    def _find_network(self, interface: str, link: Fact[LinkKind]) -> _Found:
        return read_network(self._tree, self._network_manager_state, interface, link)

    def _network_manager_state(self, interface: str, wireless: bool) -> NmState:
        """Limited in time by itself: without NetworkManager's answer, the network's name may still be found."""
        self._manager.begin(interface, wireless)
        return self._manager.answer(SOURCE_LIMIT_S)

    def _ask_manager(self, interface: str, wireless: bool) -> NmState:
        return ask_network_manager(self._bus, interface, wireless=wireless)


def _nothing_known(found: _Found) -> bool:
    return not any(fact.known for fact in found)


def _answer(source: TimedQuestion[..., _Found], fields: tuple[str, ...], began_s: float) -> dict[str, Fact[Any]]:
    """Return a source's answer; unknown facts if there is none within its time limit."""
    try:
        return dict(zip(fields, source.answer(began_s + SOURCE_LIMIT_S - time.monotonic()), strict=True))
    except FactUnavailable as error:
        return {name: Fact.unknown(str(error)) for name in fields}
