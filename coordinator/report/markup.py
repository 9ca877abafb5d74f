"""HTML and SVG as text: what is not marked as markup is escaped, so nothing that a device or a person wrote becomes a tag."""

from __future__ import annotations

import html
import re
from typing import Any

# What XML cannot hold, whichever way it is written: control characters, halves of surrogate pairs, and two more.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """`text` for between tags or between quotes; a character that no page can hold becomes the replacement character."""
    return text if isinstance(text, Markup) else Markup(html.escape(_ILLEGAL.sub("\ufffd", text)))


def joined(*parts: str) -> Markup:
    """One after the other; what is no markup is escaped."""
    return Markup("".join(escaped(part) for part in parts))


def element(tag: str, *children: str, **attributes: Any) -> Markup:
    """`<tag ...>children</tag>`. An attribute that is None is left out; `aria_label` is aria-label, `class_` is class."""
    words = [
        f' {name.rstrip("_").replace("_", "-")}="{escaped(_word(value))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    return Markup(f"<{tag}{''.join(words)}>{joined(*children)}</{tag}>")


def coordinate(value: float) -> str:
    """A number of pixels, to a tenth of one."""
    return f"{value:.1f}".removesuffix(".0")


def _word(value: Any) -> str:
    return coordinate(value) if isinstance(value, float) else str(value)
