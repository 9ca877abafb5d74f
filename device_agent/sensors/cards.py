"""What kind of link a network interface is, by what the kernel says of it, and what is usual of such a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agent.facts import Fact
from shared.reasons import LinkKind

_ETHERNET_TYPE, _PPP_TYPE, _LOOPBACK_TYPE = "1", "512", "772"
_MODEM_DRIVERS = ("cdc_mbim", "hso", "huawei_cdc_ncm", "kalmia", "mhi_net", "option", "qmi_wwan", "sierra_net")
# What a phone that lends its network by USB looks like, and a 4G stick that plays at being a router.
_TETHER_DRIVERS = ("cdc_eem", "cdc_ether", "cdc_ncm", "ipheth", "rndis_host")
_MADE_OF_OTHERS = ("bond", "bridge", "macvlan", "team", "vlan")
_YES, _NO, _GUESS_YES, _GUESS_NO = 1, 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class Card:
    """A network interface: what /sys/class/net says of it.

    `arp_type`: the number of its hardware type; `device_type`: DEVTYPE of its uevent; `hardware`: whether a device is behind
    it; `below`: the interfaces it is made of, where it is a bridge, a bond or a VLAN.
    """

    name: str
    arp_type: str = ""
    device_type: str = ""
    driver: str = ""
    wireless: bool = False
    hardware: bool = False
    below: tuple[Card, ...] = ()


def uevent_value(text: str, key: str) -> str:
    """The value of a line `KEY=value`; empty where there is none."""
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, found, value in lines if found and name.strip() == key), "")


def link_kind(card: Card) -> Fact[LinkKind]:
    """What kind of link it is; ASSUMED where it is only what such a driver is mostly used for."""
    place = f"sys/class/net/{card.name}"
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


def _kind_below(card: Card, place: str) -> Fact[LinkKind]:
    """That of the hardware which a bridge, bond or VLAN is made of; OTHER where there are several kinds or none."""
    kinds = [kind for kind in map(link_kind, card.below) if kind.value is not LinkKind.OTHER]
    if kinds and all(kind.value is kinds[0].value for kind in kinds):
        return kinds[0]
    return Fact(LinkKind.OTHER, f"{place}: {card.device_type}")


def usual_metering(link: Fact[LinkKind]) -> Fact[bool]:
    """Whether such a link is usually paid by the byte; UNKNOWN where nothing is usual."""
    if link.value is LinkKind.CELLULAR:
        return Fact.assumed(True, f"{link.source}: mobile data are usually metered")
    if link.value in (LinkKind.LOOPBACK, LinkKind.ETHERNET, LinkKind.WIFI):
        return Fact.assumed(False, f"{link.source}: {link.value} is usually not metered")
    return Fact.unknown(f"{link.source}: nothing is usual of such a link")


def told_metering(code: int, link: Fact[LinkKind]) -> Fact[bool]:
    """NetworkManager's NMMetered of the interface; its guess of `no` does not count for mobile data: it knows few phones."""
    if code in (_YES, _NO):
        return Fact(code == _YES, "NetworkManager")
    usual = usual_metering(link)
    if code == _GUESS_YES:
        return Fact.assumed(True, "NetworkManager's guess")
    if code == _GUESS_NO and usual.value is not True:
        return Fact.assumed(False, "NetworkManager's guess")
    return usual


def ssid_text(ssid: bytes | Sequence[int]) -> str:
    r"""Up to 32 bytes as text; what is not printable UTF-8 is written as in `caf\xe9`, so that a terminal can show it."""
    text = bytes(ssid).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
