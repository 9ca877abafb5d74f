"""Output to a terminal: whether a stream can show a live display, and plain lines where it cannot."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol, Self, TextIO

from rich.console import Console


def plain_console(stream: TextIO) -> Console:
    """A console that prints what it is given, and takes nothing in it for markup."""
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def can_draw(console: Console) -> bool:
    """Whether it is a terminal that moves its cursor and has more than ASCII."""
    return console.file.isatty() and os.environ.get("TERM") not in (None, "", "dumb") and not console.options.ascii_only


class Display(Protocol):
    """What has a beginning and an end."""

    def __enter__(self) -> Self:
        """Begins to show."""

    def __exit__(self, *_: object) -> None:
        """Leaves the terminal as it was, with the last state on it."""

    def say(self, line: str) -> None:
        """Prints a line."""


class PlainLines:
    """A display that only says lines on `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def say(self, line: str) -> None:
        """Prints a line."""
        with suppress(OSError):  # nobody reads any more, which is no reason to stop what is shown
            self._stream.write(f"{line}\n")
            self._stream.flush()
