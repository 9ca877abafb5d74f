"""Damaged rows of a file: they are left out and counted. Above the share `damaged_share` the file is refused.

A row is damaged if it has a wrong number of cells, or a value that is refused. In a folder a refused file is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from fedpatch.shared.errors import UsageError

DAMAGED_SHARE = 0.2
"""Share of the lines of a file that may be damaged."""


class DamagedRow(Exception):
    """A row that is left out. The text begins with its column, if one is to blame: "column x: 'warm' is no number"."""


@dataclass
class DamagedRows:
    """The damaged rows of one file.

    Attributes:
        shown: The file in messages.
        row_word: The word for a row: "line" or "row".
        allowed_share: Share of the rows above which the file is refused.
        rows: Number of all rows.
        damaged: Number of the damaged ones.
        first: Place and reason of the first one.
    """

    shown: str
    row_word: str
    allowed_share: float
    rows: int = 0
    damaged: int = 0
    first: str = ""

    def add(self, row: int, why: str) -> None:
        """Count a damaged row.

        Args:
            row: Its number in the file.
            why: Text of its DamagedRow.
        """
        self.rows += 1
        self.damaged += 1
        if not self.first:
            separator = ", " if why.startswith("column ") else ": "
            self.first = f"{self.shown}, {self.row_word} {row}{separator}{why}"

    def refusal(self) -> str:
        """Return the reason for which the file is refused; "" if it has few damaged rows."""
        share = self.damaged / self.rows if self.rows else 0.0
        if share <= self.allowed_share:
            return ""
        return (
            f"{self.first}; of {self.rows} {self.row_word}s {self.damaged} are damaged, more than the share "
            f"{self.allowed_share:g} that may be (damaged_share): correct the file"
        )

    def note(self) -> str:
        """Return a note on the rows that are left out; "" without any."""
        if not self.damaged:
            return ""
        return (
            f"{self.shown}: {self.row_word}s damaged: {self.damaged}, left out, of {self.rows}; the first: {self.first}"
        )


def require_share(share: float) -> None:
    """Raise UsageError unless `damaged_share` is a number from 0 to 1."""
    if not isinstance(share, Real) or not 0.0 <= share <= 1.0:
        raise UsageError(f"damaged_share is {share!r}; it must be from 0 to 1")
