"""Hosts for the testbed: a network namespace and a share of the processor for each, and links of a given rate.

    with Hosts(["server", "pi-1"], rate_bit_s=60e6) as hosts:
        with hosts.inside("pi-1"):
            process = subprocess.Popen(...)       # runs on that host
        hosts.put("pi-1", process.pid)            # and so do its children
        hosts.limit("pi-1", 0.1)                  # a tenth of a processor from now on

A separate process, `python -m benchmarks.testbed.hosts PREFIX`, cleans up when the `with` block or its process ends in any
way: it kills the processes on the hosts, and removes namespaces and control groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fedpatch.shared.errors import FedpatchError

ROOT = Path(__file__).resolve().parents[2]
PERIOD_US = 20_000
"""Period of a quota. A tenth of a processor is 2 ms in every 20, so a message waits little longer than on a slow processor."""
MAX_HOSTS = 200

_NAME = "fedpatch-bed"
_OWNED = re.compile(rf"({_NAME}-(\d+))-[a-z0-9-]+")
_NETNS = Path("/run/netns")
_CGROUP_V1, _CGROUP_V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_CLONE_NEWNET = 0x40000000
# The queue of a link, in milliseconds at its rate; a full queue drops packets, as in an access point.
_QUEUE_MS, _BURST_BYTES = 200, 64 * 1024
_TRIES, _PAUSE_S = 100, 0.05
_libc = ctypes.CDLL(None, use_errno=True)


class Hosts:
    """Hosts by name; the first has the address 10.98.0.1. Raises FedpatchError if the machine allows none (`why_not`)."""

    def __init__(self, names: Sequence[str], *, rate_bit_s: float) -> None:
        self._prefix = f"{_NAME}-{os.getpid()}"
        self._numbers = {name: number for number, name in enumerate(names[:MAX_HOSTS], 1)}
        self._rate_bit_s = rate_bit_s
        self._reaper: subprocess.Popen[bytes] | None = None

    def address(self, name: str) -> str:
        """Return the IPv4 address of a host."""
        return f"10.98.0.{self._numbers[name]}"

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Put sockets and processes that this thread makes within the block on the host."""
        there = _NETNS / f"{self._prefix}-{name}"
        with open("/proc/thread-self/ns/net", "rb") as home, there.open("rb") as other:
            _move(other.fileno())
            try:
                yield
            finally:
                _move(home.fileno())

    def put(self, name: str, pid: int) -> None:
        """Let a process, and children that it starts from now on, share the host's processor."""
        (self._group(name) / "cgroup.procs").write_text(str(pid))

    def limit(self, name: str, cpus: float | None) -> None:
        """Limit the host to a share of a processor; None: no limit."""
        group = self._group(name)
        quota_us = None if cpus is None else max(1000, int(cpus * PERIOD_US))
        if group.is_relative_to(_CGROUP_V1):
            (group / "cpu.cfs_quota_us").write_text("-1")
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us or -1))
        else:
            (group / "cpu.max").write_text(f"{quota_us or 'max'} {PERIOD_US}")

    def __enter__(self) -> Self:
        if reason := why_not():
            raise FedpatchError(f"the testbed needs hosts of its own: {reason}")
        remove_leftovers()
        # In a session of its own, so that Ctrl-C does not end this process before its cleanup.
        line = [sys.executable, "-m", "benchmarks.testbed.hosts", self._prefix]
        self._reaper = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
        try:
            self._build()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end()

    def _build(self) -> None:
        switch = f"{self._prefix}-switch"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for name, number in self._numbers.items():
            host, port = f"{self._prefix}-{name}", f"port{number}"
            _run("ip", "netns", "add", host)
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", host, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", host, "link", "set", device, "up")
            if number > 1:  # the server is on a cable
                for namespace, device in ((host, "eth0"), (switch, port)):
                    shape = ["rate", f"{self._rate_bit_s:.0f}bit", "burst", str(_BURST_BYTES), "latency"]
                    shape += [f"{_QUEUE_MS}ms"]
                    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *shape)
            self._group(name).mkdir()

    def _end(self) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.wait()

    def _group(self, name: str) -> Path:
        return _groups() / f"{self._prefix}-{name}"


def why_not() -> str:
    """Return why this machine allows no hosts; empty if it allows them."""
    if os.geteuid() != 0:
        return "network namespaces and control groups need root"
    if missing := [program for program in ("ip", "tc") if shutil.which(program) is None]:
        return f"the command {missing[0]} is not installed (apt install iproute2)"
    probe = f"{_NAME}-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:  # nosec B607
        return "network namespaces cannot be made here"
    shape = ["root", "tbf", "rate", "1mbit", "burst", "10000", "latency", "50ms"]
    shaped = subprocess.run(["tc", "-n", probe, "qdisc", "add", "dev", "lo", *shape], capture_output=True, check=False)  # nosec B607
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)  # nosec B607
    if shaped.returncode != 0:
        return "the kernel has no token bucket filter (sch_tbf)"
    group = _groups() / probe
    try:
        group.mkdir()
        found = any((group / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us"))
        group.rmdir()
    except OSError as error:
        return f"control groups cannot be made: {error}"
    return "" if found else f"{_groups()} has no quota of processor time"


def remove_leftovers() -> None:
    """Remove the hosts of ended processes."""
    places = [path.name for folder in (_NETNS, _groups()) if folder.is_dir() for path in folder.glob(f"{_NAME}-*")]
    owned = [found for found in map(_OWNED.fullmatch, places) if found]
    for prefix in {one[1] for one in owned if not Path("/proc", one[2]).exists()}:
        take_down(prefix)


def take_down(prefix: str) -> None:
    """Kill the processes on the hosts of a prefix, and remove the hosts, if there are any."""
    groups = list(_groups().glob(f"{prefix}-*"))
    namespaces = [path.name for path in _NETNS.glob(f"{prefix}-*")] if _NETNS.is_dir() else []
    for _ in range(_TRIES):
        pids = {int(pid) for group in groups for pid in _read(group / "cgroup.procs").split()}
        for namespace in namespaces:
            found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)  # nosec B607
            pids |= {int(pid) for pid in found.stdout.split()}
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    for namespace in namespaces:
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)  # nosec B607
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


def _groups() -> Path:
    return _CGROUP_V1 if _CGROUP_V1.is_dir() else _CGROUP_V2


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _move(namespace_fd: int) -> None:
    if _libc.setns(namespace_fd, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _run(*line: str) -> None:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FedpatchError(f"{' '.join(line)}: {done.stderr.strip()}")


def main() -> None:
    """Wait until the parent closes the pipe or ends, then remove the hosts."""
    sys.stdin.buffer.read()
    take_down(sys.argv[1])


if __name__ == "__main__":
    main()
