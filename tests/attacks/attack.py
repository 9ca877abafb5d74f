"""What an attack is: a name, what it does, what stops it, and how it is played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.attacks.arena import Arena, Outcome

Proof = Callable[[Outcome], object]
"""Asked when the run is over: something true of the attack that could not be so had it not happened."""


@dataclass(frozen=True)
class Attack:
    """An attack; docs/explanation/threat-model.md counts them by kind.

    `play` does it, and raises where that did not work; it returns a Proof, or None where it has seen for itself that the
    attack happened. One that takes `part` is a device that is there when the run begins.
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
    """The name under which each attack is played."""
    return {f"foe-{number:02}": attack for number, attack in enumerate(attacks)}
