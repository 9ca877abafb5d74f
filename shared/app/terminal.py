"""Output to a terminal: a live display where the terminal can draw one, and plain lines elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from typing import Protocol, Self, TextIO

from rich.console import Console


def plain_console(stream: TextIO) -> Console:
    """Return a console that prints text unchanged, without markup."""
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def can_draw(console: Console) -> bool:
    """Return whether the console is a notebook with widgets, or a terminal that moves its cursor and shows more than ASCII."""
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None
    return console.file.isatty() and os.environ.get("TERM") not in (None, "", "dumb") and not console.options.ascii_only


class Display(Protocol):
    """A display that is shown within a `with` block."""

    def __enter__(self) -> Self:
        """Start the display."""

    def __exit__(self, *_: object) -> None:
        """Restore the terminal, with the last state on it."""

    def say(self, line: str) -> None:
        """Print a line."""


class PlainLines:
    """A display that only prints lines on `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a closed stream must not stop the work that is displayed
            self._stream.flush()

    def say(self, line: str) -> None:
        """Print a line."""
        with suppress(OSError):
            self._stream.write(f"{line}\n")
            self._stream.flush()
