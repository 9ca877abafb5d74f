"""Templates and tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_TEMPLATES = Path(__file__).parent / "templates"


def render(template: str | Path, look_up: Callable[[str, str], str] | None = None, **parts: str) -> str:
    """Fill a template.

    Args:
        template: Path of the template; a name is one of scripts/reference/templates.
        look_up: Returns the text for `{{kind:name}}`; such a placeholder can be anywhere in the template.
        parts: The text for each `{{name}}`.

    Returns:
        The page.

    Raises:
        KeyError: A part is missing.
        ValueError: The template has no placeholder for some parts.
    """
    text = (_TEMPLATES / template).read_text("utf-8")
    if unused := parts.keys() - set(re.findall(r"\{\{(\w+)\}\}", text)):
        raise ValueError(f"{template} has no placeholder for {', '.join(sorted(unused))}")
    if look_up is not None:
        text = re.sub(r"\{\{(\w+):([^}]+)\}\}", lambda found: look_up(found[1], found[2]), text)
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
    """Format a range of whole numbers, or a single number."""
    return str(low) if low == high else f"{low} to {high}"
