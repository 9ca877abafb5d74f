"""The bytes of one question to the Linux kernel (rtnetlink): by which interface does a packet to this address leave?"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

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
    """Number of the interface; minus the error's number where the kernel refuses; 0 where the bytes say nothing."""
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
