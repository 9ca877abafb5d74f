"""Reads TOML within a limit, finds the lines of its keys, and changes values in its text.

tomllib returns values without their lines, and writes nothing. `key_lines` works on documents that tomllib has accepted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_KEY_PARTS = 100
_KEY = r"""(?: "(?:\\.|[^"\\\n])*" | '[^'\n]*' | [A-Za-z0-9_-]+ )"""
_ENTRY = re.compile(
    rf"""
    (?:[ \t\r\n]++|\#[^\n]*+)*+
    (?P<entry> \[\[?[ \t]*(?P<table>{_KEY}) | (?P<key>{_KEY}) (?:[ \t]*\.[ \t]*{_KEY})* [ \t]*= )
    """,
    re.VERBOSE,
)
# A match begins only where a key can begin, so that the search is linear in a long key.
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_KEY} [ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}", re.VERBOSE)
# In this order: a multi-line string must be tried before a single-line one. It may end with up to five quotes, because
# two of them can belong to the text.
_TOKEN = re.compile(
    r'''
    """(?:\\.|[^\\])*?"{3,5} | \'\'\'.*?\'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*'
    | \#[^\n]* | [^"'\#\[\]{}\n]+ | [\[\]{}\n]
    ''',
    re.VERBOSE | re.DOTALL,
)


def parse_toml(text: str) -> dict[str, Any]:
    """Read a TOML document whose dotted keys have at most `MAX_KEY_PARTS` parts: tomllib's memory is quadratic in the parts.

    Raises:
        ValueError: It is not TOML (`tomllib.TOMLDecodeError`), or a key has more parts.
        RecursionError: Its lists or tables are nested too deep.
    """
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"line {line}: a key has more than {MAX_KEY_PARTS} parts; shorten it")
    return tomllib.loads(text)


def key_lines(text: str) -> dict[str, int]:
    """Return the line, from 1, of the first mention of each top-level key or table of a valid TOML document."""
    lines: dict[str, int] = {}
    for key, begin, _end, _is_table in _entries(text):
        lines.setdefault(key, text.count("\n", 0, begin) + 1)
    return lines


def with_values(text: str, values: Mapping[str, str], without: Collection[str] = ()) -> str:
    """Change values at the top level of a TOML document; the rest and its comments stay.

    Args:
        text: A valid TOML document.
        values: Texts by key. A line with the key gets the value; new keys come before the first table.
        without: Keys to remove.

    Raises:
        ValueError: The result does not have these values, for example because a key is a table.
    """
    entries = list(_entries(text))
    tables = [begin for _key, begin, _end, is_table in entries if is_table]
    at = tables[0] if tables else len(text)
    present = [
        (key, begin, end) for key, begin, end, is_table in entries if not is_table and key in {*values, *without}
    ]
    absent = [key for key in values if key not in {one for one, _, _ in present}]
    added = "".join(f"{key} = {toml_value(values[key])}\n" for key in absent)
    before_ends = at == 0 or text[at - 1] == "\n"
    changed = text[:at] + ("" if before_ends or not added else "\n") + added + text[at:]
    for key, begin, end in reversed(present):
        if key in values:
            changed = changed[:begin] + f"{key} = {toml_value(values[key])}" + changed[end:]
        else:
            changed = changed[:begin].rstrip(" \t") + changed[end:].removeprefix("\n")
    kept = {key: value for key, value in tomllib.loads(text).items() if key not in without}
    if tomllib.loads(changed) != {**kept, **values}:
        raise ValueError("its keys are ambiguous")
    return changed


def _entries(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Top-level keys and tables of a valid document: name, where it begins and ends in the text, whether it is a table."""
    place, in_table = 0, False
    while found := _ENTRY.match(text, place):
        begin, is_table = found.start("entry"), found["table"] is not None
        end = text.find("\n", begin) if is_table else _end_of_value(text, found.end())
        place = len(text) if end < 0 else end
        if is_table or not in_table:
            yield _bare(found["key"] or found["table"]), begin, place, is_table
        in_table = in_table or is_table


def syntax_problem(text: str, error: tomllib.TOMLDecodeError) -> tuple[int, str]:
    """Return the line (from 1) and the words of tomllib's error about `text`; a repeated key or section is named."""
    line, words = _place_of(text, error)
    if key := _repeated_key(text, line, error):
        return line, f"{key} is set a second time; keep one of its lines"
    if found := re.match(r"Cannot declare \('(\w+)',\) twice", words):
        return line, f"[{found[1]}] is there a second time; settings have no sections, so delete both lines"
    return line, words


def _place_of(text: str, error: tomllib.TOMLDecodeError) -> tuple[int, str]:
    message = str(error)
    found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if found is not None:
        return int(found[1]), f"{message[: found.start()]} (column {found[2]})"
    return max(1, len(text.splitlines())), message.removesuffix(" (at end of document)") + " at the end of the file"


def _repeated_key(text: str, line: int, error: tomllib.TOMLDecodeError) -> str:
    """Return the key that a line sets a second time; "" for another error.

    Args:
        line: Number of the line, from 1.
    """
    if "overwrite" not in str(error):
        return ""
    found = _ENTRY.match(text.splitlines()[line - 1])
    return _bare(found["key"]) if found is not None and found["key"] else ""


def toml_value(value: str | int | float | bool | Path | tuple[str, ...]) -> str:
    """`value` as it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return '"' + re.sub(r'["\\\x00-\x1f\x7f]', _escaped, str(value)) + '"'


def _end_of_value(text: str, place: int) -> int:
    """Index of the line end after the value that begins at `place`."""
    depth = 0
    while token := _TOKEN.match(text, place):
        if token[0] == "\n" and depth == 0:
            return place
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        place = token.end()
    return len(text)


def _bare(key: str) -> str:
    return str(next(iter(tomllib.loads(f"{key} = 0"))))


def _escaped(found: re.Match[str]) -> str:
    return "\\" + found[0] if found[0] in '"\\' else f"\\u{ord(found[0]):04x}"
