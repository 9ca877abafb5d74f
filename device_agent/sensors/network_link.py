"""Finds the interface by which the route to the broker leaves, and what kind of link it is. No packet is sent.

Asked of the kernel's routing table itself, so policy routes, VPNs and metrics count as they do for the real connection.
"""

from __future__ import annotations

import os
import socket
import time
from ipaddress import IPv4Address, IPv6Address, ip_address

from device_agent.conditions.bounded import CannotTell
from device_agent.conditions.cards import Card, link_kind, uevent_value
from device_agent.conditions.netlink import route_answer, route_question
from device_agent.conditions.tree import Tree
from device_agent.facts import Fact
from shared.reasons import LinkKind

NAME_GOOD_S = 600.0
_NETLINK_LIMIT_S = 1.0
_NETLINK_BYTES = 16_384
_DEEPEST = 3
_NET = "sys/class/net"

_Address = tuple[IPv4Address | IPv6Address, int]


class Route:
    """The way to one host; its address is looked up every ten minutes, and the last one known serves while that fails."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._addresses: list[_Address] = []
        self._known_at_s = 0.0

    def interface(self) -> str:
        """Name of the interface that packets to the host leave by now. Raises CannotTell."""
        why = ""
        for address, scope in self._looked_up():
            number = _ask_kernel(address, scope)
            if number > 0:
                return socket.if_indextoname(number)
            why = os.strerror(-number) if number else "the kernel gives no answer"
        raise CannotTell(f"no route to {self._host}: {why}")

    def _looked_up(self) -> list[_Address]:
        now_s = time.monotonic()
        if not self._addresses or now_s - self._known_at_s > NAME_GOOD_S:
            try:
                found = socket.getaddrinfo(self._host, None, type=socket.SOCK_DGRAM)
            except (OSError, UnicodeError) as error:
                if not self._addresses:
                    raise CannotTell(f"the name {self._host} cannot be resolved ({error})") from error
            else:
                self._addresses = [_address_of(where) for *_, where in found]
                self._known_at_s = now_s
        return self._addresses


def _address_of(where: tuple[str | int, ...] | tuple[int, bytes]) -> _Address:
    scope = where[3] if len(where) > 3 else 0
    return ip_address(str(where[0]).partition("%")[0]), int(scope)


def _ask_kernel(address: IPv4Address | IPv6Address, scope: int) -> int:
    """The number of the interface, or minus an errno."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_NETLINK_LIMIT_S)
        kernel.sendto(route_question(address, scope), (0, 0))
        return route_answer(kernel.recv(_NETLINK_BYTES))


def read_link(tree: Tree, interface: str) -> Fact[LinkKind]:
    """What kind of link an interface is; OTHER where the kernel shows nothing of it, as in some containers."""
    if not tree.exists(f"{_NET}/{interface}"):
        return Fact.assumed(LinkKind.OTHER, f"{interface} is not in {_NET}")
    return link_kind(_read_card(tree, interface, _DEEPEST))


def _read_card(tree: Tree, interface: str, deepest: int) -> Card:
    place = f"{_NET}/{interface}"
    lower = [name.removeprefix("lower_") for name in tree.names(place) if name.startswith("lower_")]
    return Card(
        name=interface,
        arp_type=tree.text(f"{place}/type") or "",
        device_type=uevent_value(tree.text(f"{place}/uevent") or "", "DEVTYPE"),
        driver=tree.target_name(f"{place}/device/driver"),
        wireless=tree.exists(f"{place}/wireless") or tree.exists(f"{place}/phy80211"),
        hardware=tree.exists(f"{place}/device"),
        below=tuple(_read_card(tree, one, deepest - 1) for one in lower) if deepest else (),
    )
