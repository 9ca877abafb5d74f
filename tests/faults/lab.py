"""A lab of hosts on one machine: a network namespace for each host, and a switch in this process that connects them.

    with Lab(["broker", "ann"], seed=7) as lab:
        lab.shape("ann", WIFI)
        with lab.inside("ann"):
            ...                     # sockets and processes made here are on the host "ann"
        lab.cut("ann", Cut.SILENT)
        lab.heal("ann")

Each host has one card, `eth0`, a TAP device whose other end this process holds; a thread forwards the frames from card to card
and applies the rules of tests.faults.netem. No frame leaves the lab: it has no other links. Namespaces and their processes end
with the `with`; the next lab removes leftovers of a process that crashed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from tests.faults.netem import Line, LineTerms

PREFIX = "fedpatch-lab"
ON_HOSTS = [
    *(getattr(pytest.mark, name) for name in ["faults", "lab", "broker", "system"]),
    pytest.mark.timeout(600),
]
"""Marks of tests that run rounds between such hosts."""
_OWNED = re.compile(rf"{PREFIX}-(\d+)-\d+-[a-z0-9_-]+")
_NETNS = Path("/run/netns")
_TUN = Path("/dev/net/tun")
# linux/if_tun.h and linux/sched.h
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME_BYTES = 65_536
_FRAMES_AT_ONCE = 64
_GROUP_BIT = 1
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


class Cut(StrEnum):
    """How a host is cut off: `CABLE`: it notices, and a connect fails at once; `SILENT`: frames are lost in both directions."""

    CABLE = "cable"
    SILENT = "silent"


@dataclass
class _Host:
    name: str
    namespace: str
    address: str
    mac: bytes
    up: Line
    down: Line
    card: int = -1
    cuts: set[Cut] = field(default_factory=set)


class Lab:
    """Hosts on one switch; the first has the address 10.99.0.1. Skips the test if the machine allows no lab."""

    def __init__(self, hosts: Sequence[str], *, seed: int) -> None:
        require_lab()
        lab = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        rng = random.Random(seed)
        self._hosts = {
            name: _Host(
                name,
                f"{lab}-{name}",
                f"10.99.0.{i}",
                bytes((2, 0, 0, 0, 0, i)),
                Line(random.Random(rng.getrandbits(64))),
                Line(random.Random(rng.getrandbits(64))),
            )
            for i, name in enumerate(hosts, 1)
        }
        self._by_card: dict[int, _Host] = {}
        self._by_mac: dict[bytes, _Host] = {}
        self._under_way: list[tuple[float, int, bool, _Host, bytes]] = []
        self._order = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry, name=lab, daemon=True)

    def address(self, host: str) -> str:
        """IPv4 address of a host."""
        return self._hosts[host].address

    def shape(self, host: str, terms: LineTerms) -> None:
        """From now on, apply `terms` to both directions of the host's link."""
        self._hosts[host].up.terms = self._hosts[host].down.terms = terms

    def cut(self, host: str, how: Cut) -> None:
        self._hosts[host].cuts.add(how)
        if how is Cut.CABLE:
            _ip("-n", self._hosts[host].namespace, "link", "set", "eth0", "down")

    def heal(self, host: str) -> None:
        found = self._hosts[host]
        if Cut.CABLE in found.cuts:
            _ip("-n", found.namespace, "link", "set", "eth0", "up")
        found.cuts.clear()

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Sockets and processes that this thread creates meanwhile are on the host."""
        with _inside(self._hosts[host].namespace):
            yield

    def __enter__(self) -> Lab:
        remove_leftovers()
        try:
            for host in self._hosts.values():
                self._plug_in(host)
        except BaseException:
            self._tear_down()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._tear_down()

    def _plug_in(self, host: _Host) -> None:
        ns = host.namespace
        _ip("netns", "add", ns)
        with _inside(ns):
            host.card = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(host.card, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TAP | _IFF_NO_PI))
        self._by_card[host.card], self._by_mac[host.mac] = host, host
        _ip("-n", ns, "link", "set", "eth0", "address", host.mac.hex(":"), "addrgenmode", "none")
        _ip("-n", ns, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", ns, "link", "set", "eth0", "up")
        _ip("-n", ns, "link", "set", "lo", "up")

    def _tear_down(self) -> None:
        for host in self._hosts.values():
            _remove(host.namespace)
            if host.card >= 0:
                os.close(host.card)

    def _carry(self) -> None:
        """The switch: read frames, and deliver each to its receivers when it is due."""
        poll = select.epoll()
        with contextlib.closing(poll):
            for card in self._by_card:
                poll.register(card, select.EPOLLIN)
            while not self._stop.is_set():
                wait_s = self._deliver(time.monotonic())
                for card, _ in poll.poll(wait_s):
                    self._read(self._by_card[card])

    def _deliver(self, now: float) -> float:
        """Move all frames that are due by one hop; return the seconds until the next frame is due."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, at_switch, host, frame = heapq.heappop(self._under_way)
            if host.cuts:
                continue
            if at_switch:
                for to in self._receivers(host, frame):
                    self._enter(to.down, to, frame, now, at_switch=False)
            else:
                with contextlib.suppress(OSError):  # a card that is down accepts no frames
                    os.write(host.card, frame)
        return min(0.1, max(0.0, self._under_way[0][0] - now)) if self._under_way else 0.1

    def _read(self, host: _Host) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(host.card, _FRAME_BYTES)
            except OSError:
                return
            if not host.cuts:
                self._enter(host.up, host, frame, time.monotonic(), at_switch=True)

    def _enter(self, line: Line, host: _Host, frame: bytes, now: float, *, at_switch: bool) -> None:
        arrival = line.enter(len(frame), now)
        if arrival is not None:
            heapq.heappush(self._under_way, (arrival, next(self._order), at_switch, host, frame))

    def _receivers(self, sender: _Host, frame: bytes) -> list[_Host]:
        if frame[0] & _GROUP_BIT:
            return [host for host in self._hosts.values() if host is not sender]
        found = self._by_mac.get(frame[:6])
        return [found] if found is not None else []


def remove_leftovers() -> None:
    """Remove the labs of processes that have ended."""
    for path in _NETNS.glob(f"{PREFIX}-*") if _NETNS.is_dir() else ():
        owned = _OWNED.fullmatch(path.name)
        if owned and not Path("/proc", owned[1]).exists():
            _remove(path.name)


def _remove(namespace: str) -> None:
    """End the processes in a namespace, and remove it; neither has to exist."""
    if not (_NETNS / namespace).exists():
        return
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in map(int, found.stdout.split()):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


@contextlib.contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """Move this thread alone to a namespace, and back in the end."""
    with open("/proc/thread-self/ns/net", "rb") as home, (_NETNS / namespace).open("rb") as there:
        _move(there.fileno())
        try:
            yield
        finally:
            _move(home.fileno())


def _move(namespace_fd: int) -> None:
    if _libc.setns(namespace_fd, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def require_lab() -> None:
    """Skip the test without root or without network namespaces."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("the command ip is not installed (apt install iproute2)")
    if not os.access(_TUN, os.R_OK | os.W_OK):
        pytest.skip(f"{_TUN} cannot be opened, so there are no TAP devices")
    probe = f"{PREFIX}-{os.getpid()}-{next(_numbers)}-probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
        pytest.skip("network namespaces cannot be made here")
    _remove(probe)
