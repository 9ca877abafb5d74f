"""Lines of a program's output without the parts that differ from run to run."""

from __future__ import annotations

import re


def shape_of(line: str) -> str:
    """Return the line without names of runs, paths, numbers, the outcome, and widths of columns."""
    line = re.sub(r"\b20\d{6}-\d{6}-[0-9a-f]+|'[\w-]+'", "NAME", line)
    line = re.sub(r"\S*[a-z]\S*/\S*", "PATH", line)
    line = re.sub(r"all rounds done|target reached", "END", line)
    line = re.sub(r"private \w+", "private", line)
    line = re.sub(r"rounds?\b|[kM]?B\b|\d+(?:\.\d+)?", "#", line)
    return " ".join(line.split())
