"""A conflict between settings of one run, and the loop that finds the conflicts of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Conflict:
    """Settings that exclude each other.

    Attributes:
        setting: The setting that the message names.
        others: The other settings of the conflict.
        when: Whether settings (RoundSettings or RunSettings) have the conflict.
        text: The reason with the remedy; `{s.NAME}` is the value of a setting.
    """

    setting: str
    others: tuple[str, ...]
    when: Callable[[Any], bool]
    text: str


def conflicts_of(settings: Any, table: Iterable[Conflict]) -> list[tuple[str, ...]]:
    """Return the conflicts of a table that settings have, in the form of `Settings.check`."""
    return [(one.setting, one.text.format(s=settings), *one.others) for one in table if one.when(settings)]
