"""Attacks by a member of a masked group; tests/coordinator/runtime/test_masked_rounds.py runs them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpatch.shared.masking.keys import SecretKeys
from fedpatch.shared.wire.masking_messages import MaskingKeys, Reveal, Shares
from fedpatch.shared.wire.messages import Accept

Answer = Any
_NO_KEYS, _NOT_OURS = "fails the device: `no_keys`", "counted: `not_ours`; the sum goes without it"
_BY_OTHERS, _LOST = "counted: `not_ours`; the shares of others open the sum", "its group does not count: `group_lost`"


@dataclass(frozen=True)
class MaskedAttack:
    """An attack by one of sixteen devices in two groups.

    Attributes:
        change: Changes the device's answers.
        of_device: Changes attributes of the device.
        reported: Devices that the round counts: 16, 15 without the bad device, 8 without its group.
        failures: Failures in the round's record.
        refused: Refusals in the round's record.
        is_offence: Whether the attack counts against the device.
    """

    name: str
    does: str
    stopped_by: str
    change: Callable[[Answer], Answer] = lambda answer: answer
    of_device: tuple[tuple[str, Any], ...] = ()
    reported: int = 15
    failures: tuple[tuple[str, int], ...] = ()
    refused: tuple[tuple[str, int], ...] = ()
    is_offence: bool = False


def _in(kind: type[Any], **changes: Callable[[Any], Any]) -> Callable[[Answer], Answer]:
    """Change fields of one kind of message."""

    def change(answer: Answer) -> Answer:
        if not isinstance(answer, kind):
            return answer
        return replace(answer, **{name: made(answer) for name, made in changes.items()})

    return change


def _zeros(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(bytes(len(part)) for part in parts)


_SMALL_ORDER = MaskingKeys(bytes(32), bytes(32))


def _copied_keys() -> MaskingKeys:
    """Keys of its own, but the mask key is that of another member with its highest bit flipped: X25519 ignores this bit."""
    other, own = (SecretKeys.new(random.Random(name).randbytes).public() for name in ("pi-05", "a liar"))
    return replace(own, mask=bytes([*other.mask[:31], other.mask[31] ^ 0x80]))


MASKED_ATTACKS = (
    MaskedAttack(
        "no keys", "accepts without keys", _NO_KEYS, lambda it: Accept(1) if isinstance(it, Accept) else it,
        failures=(("no_keys", 1),),
    ),
    MaskedAttack(
        "keys that make masks public", "points of small order", _NO_KEYS, _in(Accept, keys=lambda _: _SMALL_ORDER),
        failures=(("no_keys", 1),),
    ),
    MaskedAttack(
        "a copied key", "the mask key of another member in other bytes", _NO_KEYS,
        _in(Accept, keys=lambda _: _copied_keys()), failures=(("no_keys", 1),),
    ),
    MaskedAttack(
        "a box too few", "shares for all other members but one", _NOT_OURS,
        _in(Shares, boxes=lambda it: it.boxes[:-1]), failures=(("no_shares", 1),), is_offence=True,
    ),
    MaskedAttack(
        "an update of another size", "a masked vector that is one byte short", "refused: `damaged`",
        of_device=(("cut_off", 1),), failures=(("damaged", 1),), refused=(("damaged", 1),), is_offence=True,
    ),
    MaskedAttack(
        "wrong shares", "zeros in place of the shares of others", _BY_OTHERS,
        _in(Reveal, shares=lambda it: _zeros(it.shares)), reported=16, is_offence=True,
    ),
    MaskedAttack(
        "a share too few", "reveals the shares of all members but one", _BY_OTHERS,
        _in(Reveal, shares=lambda it: it.shares[:-1]), reported=16, is_offence=True,
    ),
    MaskedAttack(
        "shares for another sum", "reveals shares for other survivors", _BY_OTHERS,
        _in(Reveal, reported=lambda it: bytes([it.reported[0] ^ 1])), reported=16, is_offence=True,
    ),
    MaskedAttack(
        "boxes that do not open", "zeros in place of the shares of its secrets", _LOST,
        _in(Shares, boxes=lambda it: _zeros(it.boxes)), reported=8, failures=(("group_lost", 8),),
    ),
    MaskedAttack(
        "a broken commitment", "commits to another secret than it shares", _LOST,
        _in(Shares, commitment=lambda _: bytes(32)), reported=8, failures=(("group_lost", 8),),
    ),
    MaskedAttack(
        "noise as a vector", "a sum that no honest devices can have", "its group is left out",
        of_device=(("spoil", lambda elements: elements + np.uint8(101)),), reported=8,
    ),
)  # fmt: skip
