"""Templates and tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **parts: str) -> str:
    """Return a template with a part in the place of each `{{name}}`. Raises KeyError for a part that is not given."""
    text = (_TEMPLATES / template).read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}(\n*)", lambda found: parts[found[1]].rstrip("\n") + found[2], text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; `|` in a cell is escaped.

    Example:
        >>> print(table(("key", "default"), [("`seed`", "`0`")]), end="")
        | key | default |
        |---|---|
        | `seed` | `0` |
    """
    lines = [header, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    texts = ["|".join(("", *(f" {cell} " if cell else " " for cell in cells), "")) for cells in lines]
    return "\n".join([texts[0], "|" + "---|" * len(header), *texts[1:]]) + "\n"


def span(low: int, high: int) -> str:
    """Format a range of whole numbers, or the number that it consists of."""
    return str(low) if low == high else f"{low} to {high}"
