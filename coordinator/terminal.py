"""Whether a stream is a terminal that a live display can be drawn on."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console


def plain_console(stream: TextIO) -> Console:
    """A console that prints what it is given, and takes nothing in it for markup."""
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def can_draw(console: Console) -> bool:
    """Whether it is a terminal that moves its cursor and has more than ASCII."""
    return console.file.isatty() and os.environ.get("TERM") not in (None, "", "dumb") and not console.options.ascii_only
