"""What can be seen of a fleet on booted hosts: runs and rounds, agents, ports that answer, and what Prometheus knows."""

from __future__ import annotations

import json
import shlex
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from tests.hosts.machines import Machines

PATIENCE_S = 300.0
COORDINATOR = "/opt/fedpatch/current/bin/fedpatch {} --state-dir /var/lib/fedpatch/coordinator"
AGENT = "/opt/fedpatch/current/bin/fedpatch-agent status --json --state-dir /var/lib/fedpatch/agent"


def until(fits: Callable[[], object], what: str) -> None:
    """Waits for a condition; TimeoutError names it."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not fits():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"never: {what}")
        time.sleep(0.5)


def runs_of(machines: Machines, hub: str) -> list[dict[str, Any]]:
    """The runs of the coordinator, the newest first; none where it has not begun one yet."""
    answer = machines.ssh(hub, COORDINATOR.format("runs --json"), check=False)
    return list(json.loads(answer or "[]"))


def rounds_of(machines: Machines, hub: str) -> list[dict[str, Any]]:
    """The records of the last run's rounds."""
    answer = machines.ssh(hub, COORDINATOR.format("show last --json"), check=False)
    return list(json.loads(answer)["rounds"]) if answer else []


def await_rounds(machines: Machines, hub: str, more: int = 1) -> list[dict[str, Any]]:
    """Rounds that are played from now on, so many at least."""
    before = len(rounds_of(machines, hub))
    until(lambda: len(rounds_of(machines, hub)) >= before + more, f"{more} more rounds than {before}")
    return rounds_of(machines, hub)[before:]


def await_serving(machines: Machines, *devices: str) -> None:
    """Until the agents of the devices are there, and connected."""
    for device in devices:
        give_up_at = time.monotonic() + PATIENCE_S
        while not (answer := status(machines, device)).get("running") or not answer.get("connected"):
            if time.monotonic() > give_up_at:
                journal = machines.ssh(device, "journalctl --no-pager -n 50 -u fedpatch-agent")
                raise TimeoutError(f"{device} does not serve: {answer}\n{journal}")
            time.sleep(0.5)


def versions_of(machines: Machines, *hosts: str) -> dict[str, str]:
    """Which version of fedpatch is in use on each host."""
    return {host: machines.ssh(host, "basename $(readlink /opt/fedpatch/current)").strip() for host in hosts}


def ask_prometheus(machines: Machines, host: str, query: str) -> list[dict[str, Any]]:
    """What the Prometheus of a host answers."""
    url = f"http://127.0.0.1:9090/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    program = f"import urllib.request as web; print(web.urlopen('{url}').read().decode())"
    found: list[dict[str, Any]] = json.loads(machines.ssh(host, f'python3 -c "{program}"'))["data"]["result"]
    return found


def reached(machines: Machines, host: str, to: str, ports: Sequence[int]) -> list[int]:
    """Those ports of the host `to` which `host` can connect to; a firewall drops packets to the others."""
    program = f"""
import socket
for port in {list(ports)}:
    try:
        socket.create_connection(("{machines.address(to)}", port), 10).close()
        print(port)
    except TimeoutError:
        pass
"""
    return [int(port) for port in machines.ssh(host, f"python3 -c {shlex.quote(program)}").split()]


def status(machines: Machines, device: str) -> dict[str, Any]:
    """Return the status of the agent of a device; empty where it has written none yet."""
    answer: dict[str, Any] = json.loads(machines.ssh(device, AGENT, check=False) or "{}")
    return answer
