"""Finds the interface of the route to the broker, and the kind of its link. No packet is sent.

The kernel's routing table itself is asked, so policy routes, VPNs and metrics count as they do for the real connection.

One message of rtnetlink asks the Linux kernel by which interface a packet to an address leaves.

The kind of an interface's link follows from the kernel's files, and the usual properties of such a link from its kind.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.shared.wire.reason_codes import LinkKind

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence number, port
_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, lengths of destination and source, ..., flags
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_NUMBER = struct.Struct("=I")
_CODE = struct.Struct("=i")
_ERROR, _NEW_ROUTE, _GET_ROUTE = 2, 24, 26
_REQUEST = 1
_DESTINATION, _INTERFACE = 1, 4
_FAMILIES = {4: 2, 6: 10}  # AF_INET and AF_INET6 of Linux


def route_question(address: IPv4Address | IPv6Address, scope: int = 0) -> bytes:
    """One message; `scope` is the interface's number where the address holds on one link only (fe80::...%eth0)."""
    attributes = _attribute(_DESTINATION, address.packed)
    if scope:
        attributes += _attribute(_INTERFACE, _NUMBER.pack(scope))
    body = _ROUTE.pack(_FAMILIES[address.version], address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attributes
    return _HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body


def route_answer(answer: bytes) -> int:
    """Number of the interface; minus the error's number where the kernel refuses; 0 where the bytes are no answer."""
    if len(answer) < _HEADER.size:
        return 0
    length, kind, _, _, _ = _HEADER.unpack_from(answer)
    body = answer[_HEADER.size : min(length, len(answer))]
    if kind == _ERROR and len(body) >= 4:
        code: int = _CODE.unpack_from(body)[0]
        return min(0, code)
    if kind != _NEW_ROUTE or len(body) < _ROUTE.size:
        return 0
    return _interface_among(body[_ROUTE.size :])


def _interface_among(attributes: bytes) -> int:
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if not _ATTRIBUTE.size <= length <= len(attributes):
            return 0
        if kind == _INTERFACE and length == _ATTRIBUTE.size + _NUMBER.size:
            number: int = _NUMBER.unpack_from(attributes, _ATTRIBUTE.size)[0]
            return number if number < 1 << 31 else 0
        attributes = attributes[(length + 3) & ~3 :]
    return 0


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


_ETHERNET_TYPE, _PPP_TYPE, _LOOPBACK_TYPE = "1", "512", "772"
_MODEM_DRIVERS = ("cdc_mbim", "hso", "huawei_cdc_ncm", "kalmia", "mhi_net", "option", "qmi_wwan", "sierra_net")
# Drivers of a phone that shares its network by USB, and of a 4G stick that acts as a router.
_TETHER_DRIVERS = ("cdc_eem", "cdc_ether", "cdc_ncm", "ipheth", "rndis_host")
_MADE_OF_OTHERS = ("bond", "bridge", "macvlan", "team", "vlan")
_YES, _NO, _GUESS_YES, _GUESS_NO = 1, 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class NetInterface:
    """A network interface, by /sys/class/net.

    `arp_type`: the number of its hardware type; `device_type`: DEVTYPE of its uevent; `hardware`: whether a device is behind
    it; `below`: the interfaces it is made of, where it is a bridge, a bond or a VLAN.
    """

    name: str
    arp_type: str = ""
    device_type: str = ""
    driver: str = ""
    wireless: bool = False
    hardware: bool = False
    below: tuple[NetInterface, ...] = ()


def uevent_value(text: str, key: str) -> str:
    """The value of a line `KEY=value`; empty where there is none."""
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, found, value in lines if found and name.strip() == key), "")


def link_kind(card: NetInterface) -> Fact[LinkKind]:
    """Return the kind of link; ASSUMED where it is only the usual one of such a driver."""
    place = f"/sys/class/net/{card.name}"
    driver = card.driver.replace("-", "_")
    if card.arp_type == _LOOPBACK_TYPE:
        return Fact(LinkKind.LOOPBACK, place)
    if card.wireless or card.device_type == "wlan":
        return Fact(LinkKind.WIFI, f"{place}: wireless")
    if card.device_type == "wwan" or driver in _MODEM_DRIVERS:
        return Fact(LinkKind.CELLULAR, f"{place}: {driver or card.device_type}")
    if driver in _TETHER_DRIVERS:
        return Fact.assumed(LinkKind.CELLULAR, f"{place}: {driver}, as of a phone or a 4G stick")
    if card.device_type == "bluetooth":
        return Fact.assumed(LinkKind.CELLULAR, f"{place}: Bluetooth, as of a phone that lends its network")
    if card.arp_type == _PPP_TYPE:
        return Fact.assumed(LinkKind.CELLULAR, f"{place}: PPP, as of a modem")
    if card.device_type in _MADE_OF_OTHERS:
        return _kind_below(card, place)
    if card.hardware and card.arp_type == _ETHERNET_TYPE and card.device_type in ("", "dsa"):
        return Fact(LinkKind.ETHERNET, place)
    return Fact(LinkKind.OTHER, f"{place}: {card.device_type or 'no device behind it'}")


def _kind_below(card: NetInterface, place: str) -> Fact[LinkKind]:
    """Return the kind of the hardware below a bridge, bond or VLAN; OTHER for several kinds or none."""
    kinds = [kind for kind in map(link_kind, card.below) if kind.value is not LinkKind.OTHER]
    if kinds and all(kind.value is kinds[0].value for kind in kinds):
        return kinds[0]
    return Fact(LinkKind.OTHER, f"{place}: {card.device_type}")


def usual_metering(link: Fact[LinkKind]) -> Fact[bool]:
    """Return whether such a link is usually paid by the byte; UNKNOWN if neither is usual."""
    if link.value is LinkKind.CELLULAR:
        return Fact.assumed(True, f"{link.source}: mobile data are usually metered")
    if link.value in (LinkKind.LOOPBACK, LinkKind.ETHERNET, LinkKind.WIFI):
        return Fact.assumed(False, f"{link.source}: {link.value} is usually not metered")
    return Fact.unknown(f"{link.source}: nothing is usual of such a link")


def reported_metering(code: int, link: Fact[LinkKind]) -> Fact[bool]:
    """Return NetworkManager's NMMetered; its guess of `no` is ignored for mobile data, since it recognises few phones."""
    if code in (_YES, _NO):
        return Fact(code == _YES, "NetworkManager")
    usual = usual_metering(link)
    if code == _GUESS_YES:
        return Fact.assumed(True, "NetworkManager's guess")
    if code == _GUESS_NO and usual.value is not True:
        return Fact.assumed(False, "NetworkManager's guess")
    return usual


def ssid_text(ssid: bytes | Sequence[int]) -> str:
    r"""Return up to 32 bytes as text for a terminal; bytes that are not printable UTF-8 are written as in `caf\xe9`."""
    text = bytes(ssid).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


NAME_GOOD_S = 600.0
_NETLINK_LIMIT_S = 1.0
_NETLINK_BYTES = 16_384
_DEEPEST = 3
_NET = "/sys/class/net"

_Address = tuple[IPv4Address | IPv6Address, int]


class Route:
    """The route to one host. Its address is looked up every ten minutes; while that fails, the last known one is used."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._addresses: list[_Address] = []
        self._known_at_s = 0.0

    def interface(self) -> str:
        """Name of the interface that packets to the host leave by now. Raises FactUnavailable."""
        why = ""
        for address, scope in self._looked_up():
            number = _ask_kernel(address, scope)
            if number > 0:
                return socket.if_indextoname(number)
            why = os.strerror(-number) if number else "the kernel gives no answer"
        raise FactUnavailable(f"no route to {self._host}: {why}")

    def _looked_up(self) -> list[_Address]:
        now_s = time.monotonic()
        if not self._addresses or now_s - self._known_at_s > NAME_GOOD_S:
            try:
                found = socket.getaddrinfo(self._host, None, type=socket.SOCK_DGRAM)
            except (OSError, UnicodeError) as error:
                if not self._addresses:
                    raise FactUnavailable(f"the name {self._host} cannot be resolved ({error})") from error
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


def read_link(tree: SysFs, interface: str) -> Fact[LinkKind]:
    """Return the kind of an interface's link; OTHER where the kernel shows nothing of it, as in some containers."""
    if not tree.exists(f"{_NET}/{interface}"):
        return Fact.assumed(LinkKind.OTHER, f"{interface} is not in {_NET}")
    return link_kind(_read_card(tree, interface, _DEEPEST))


def _read_card(tree: SysFs, interface: str, deepest: int) -> NetInterface:
    place = f"{_NET}/{interface}"
    lower = [name.removeprefix("lower_") for name in tree.names(place) if name.startswith("lower_")]
    return NetInterface(
        name=interface,
        arp_type=tree.text(f"{place}/type") or "",
        device_type=uevent_value(tree.text(f"{place}/uevent") or "", "DEVTYPE"),
        driver=tree.target_name(f"{place}/device/driver"),
        wireless=tree.exists(f"{place}/wireless") or tree.exists(f"{place}/phy80211"),
        hardware=tree.exists(f"{place}/device"),
        below=tuple(_read_card(tree, one, deepest - 1) for one in lower) if deepest else (),
    )
