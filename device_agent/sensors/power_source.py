"""The source of the facts about power: the UPS of the owner's settings alone, or, without one, the kernel."""

from __future__ import annotations

from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.kernel_power import read_supplies
from fedpatch.device_agent.sensors.power_facts import Power
from fedpatch.device_agent.sensors.ups import Ups, ask_ups


def read_power(ups: Ups | None, tree: SysFs) -> Power:
    """Return the facts about power. While a UPS is silent they are unknown: the kernel does not see most of them.

    Args:
        ups: The UPS of the settings; None without one.

    Raises:
        FactUnavailable: The source gives no answer.
    """
    return read_supplies(tree) if ups is None else ask_ups(ups, tree)
