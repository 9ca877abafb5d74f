"""An attack: its name, its action, its defence, and the function that carries it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.attacks.arena import Arena, Outcome

Proof = Callable[[Outcome], object]
"""Called after the run; true only if the attack has happened."""


@dataclass(frozen=True)
class Attack:
    """An attack. docs/explanation/threat-model.md counts the attacks by kind.

    `play` carries the attack out, and raises an error if that fails. It returns a Proof, or None if it has already checked
    that the attack happened. With `part`, the attacker is a device that is online when the run begins.
    """

    name: str
    does: str
    stopped_by: str
    play: Callable[[Arena, str], Proof | None]
    part: bool = False


def part(name: str, does: str, stopped_by: str, play: Callable[[Arena, str], Proof | None]) -> Attack:
    """An attack by a device that takes part."""
    return Attack(name, does, stopped_by, play, part=True)


def devices_of(attacks: tuple[Attack, ...]) -> dict[str, Attack]:
    """The attacks by the name of the attacking device."""
    return {f"foe-{number:02}": attack for number, attack in enumerate(attacks)}
