"""Accept or decline, and why: the owner's standing order against what is known of the device.

The order is one word of the configuration: `always`, `never`, or `file:PATH`, where the file's first line says `accept`, or
`decline` and in words why. A file that is absent or says anything else declines: in doubt the owner was not asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from shared.errors import UsageError

_FILE_PREFIX = "file:"


@dataclass(frozen=True)
class Verdict:
    """Whether the device works now; `why` is for people on both sides."""

    accept: bool
    why: str = ""


@dataclass(frozen=True)
class Order:
    """The owner's standing order; `path` is set when a file is to be asked each time."""

    always: bool
    path: str = ""


def parse_order(text: str) -> Order:
    """`always`, `never` or `file:PATH`; UsageError for anything else."""
    if text in ("always", "never"):
        return Order(always=text == "always")
    if text.startswith(_FILE_PREFIX) and len(text) > len(_FILE_PREFIX):
        return Order(always=False, path=str(PurePosixPath(text.removeprefix(_FILE_PREFIX))))
    raise UsageError(f"admission {text!r} is not known; write always, never or file:PATH")


def decide(order: Order, file_text: str | None) -> Verdict:
    """The verdict. `file_text` is what the order's file holds now, None where it cannot be read."""
    if not order.path:
        return Verdict(True) if order.always else Verdict(False, "its owner said never")
    if file_text is None:
        return Verdict(False, f"{order.path} cannot be read; write 'accept' into it to take part")
    line = (file_text.splitlines() or [""])[0].strip()
    word, _, why = line.partition(" ")
    if word == "accept":
        return Verdict(True)
    if word.rstrip(":") == "decline":
        return Verdict(False, why.strip() or f"{order.path} says decline")
    return Verdict(False, f"{order.path} says {line[:40]!r}; it must begin with 'accept' or 'decline'")
