"""The output that a page shows, compared with the output of a real run."""

from __future__ import annotations

import re

from tests.docs.pages import BLOCKS


def shape_of(line: str) -> str:
    """Return the line without the parts that differ by run: names of runs, paths, numbers, the outcome, widths of columns."""
    line = re.sub(r"\b20\d{6}-\d{6}-[0-9a-f]+|'[\w-]+'", "NAME", line)
    line = re.sub(r"\S*[a-z]\S*/\S*", "PATH", line)
    line = re.sub(r"all rounds done|target reached", "END", line)
    line = re.sub(r"private \w+", "private", line)
    line = re.sub(r"rounds?\b|[kM]?B\b|\d+(?:\.\d+)?", "#", line)
    return " ".join(line.split())


def shown_outputs(page: str) -> list[list[str]]:
    """Return the lines that the page shows after each block that a reader types."""
    outputs: list[list[str]] = []
    for block in (block for block in BLOCKS if block.page == page):
        if block.typed:
            outputs.append([])
        else:
            outputs[-1] += block.text.splitlines()
    return outputs


def not_printed(shown: list[str], printed: str) -> list[str]:
    """Return the shown lines whose shape no printed line has; a shown line that ends with "…" is the beginning of a line."""
    lines = [shape_of(line) for line in printed.splitlines()]
    missing = []
    for line in shown:
        begin, cut, _ = line.partition("…")
        shape = shape_of(begin)
        if not any(one.startswith(shape) if cut else one == shape for one in lines):
            missing.append(line)
    return missing
