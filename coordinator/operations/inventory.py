"""The devices of a registry as an inventory for Ansible: the JSON of an inventory script."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.shared.errors import UsageError, unknown_name

Inventory = dict[str, dict[str, Any]]


def inventory(devices: Iterable[DeviceInfo], *, domain: str = "", without: Collection[str] = ()) -> Inventory:
    """Group devices as hosts. The variables of all hosts are in `_meta`, so that Ansible calls the script once.

    Args:
        domain: Appended to the device id to make the address.
        without: Ids of devices to leave out.

    Returns:
        Groups `devices` or `relays`, `online` or `offline`, `fleet_NAME`, `task_NAME` and `version_X_Y_Z` of device ids. The
        inventory of its own site has the host of a relay, and upgrades it.

    Raises:
        UsageError: Two fleets have a device of the same id.
    """
    # Ansible warns of a pattern with a group that does not exist, such as !offline.
    groups: Inventory = {name: {"hosts": []} for name in ("devices", "relays", "online", "offline")}
    variables: dict[str, dict[str, Any]] = {}
    for device in devices:
        if device.id in without:
            continue
        if device.id in variables:
            raise UsageError(f"{device.id!r} is a device of two fleets, but a host has one; choose with --fleet")
        variables[device.id] = _variables(device, domain)
        for group in ("relays" if device.relay else "devices", *_groups(device)):
            groups.setdefault(group, {"hosts": []})["hosts"].append(device.id)
    return {"_meta": {"hostvars": variables}, **groups}


def host_variables(known: Inventory, host: str) -> dict[str, Any]:
    """Return the variables of one host; UsageError for an unknown one."""
    variables: dict[str, dict[str, Any]] = known["_meta"]["hostvars"]
    if host not in variables:
        raise unknown_name("device", host, sorted(variables)[:20])
    return variables[host]


def _variables(device: DeviceInfo, domain: str) -> dict[str, Any]:
    address = {"ansible_host": f"{device.id}{domain}"} if domain else {}
    return {
        **address,
        "device_agent_id": device.id,
        "fedpatch_fleet": device.fleet,
        "fedpatch_online": device.online,
        "fedpatch_last_seen": device.last_seen,
        "fedpatch_version": device.version,
        "fedpatch_tasks": list(device.tasks),
        "fedpatch_last_reason": device.last_reason,
    }


def _groups(device: DeviceInfo) -> list[str]:
    named = [("fleet", device.fleet), ("version", device.version), *(("task", task) for task in device.tasks)]
    return [
        "online" if device.online else "offline",
        # Ansible accepts only letters, digits and _ in the name of a group.
        *dict.fromkeys(re.sub(r"\W", "_", f"{kind}_{name}", flags=re.ASCII) for kind, name in named if name),
    ]
