"""The page task-functions.md: `fedpatch.examples`, `fedpatch.splits` and `fedpatch.metrics`, from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fedpatch.examples
import fedpatch.metrics
import fedpatch.splits
from fedpatch.shared.tasks.reading import cell_values
from scripts.reference.markdown import render


def page() -> str:
    """Return the page."""
    return render(
        "task-functions.md",
        examples="\n".join(_module(fedpatch.examples)),
        splits="\n".join(_module(fedpatch.splits)),
        metrics="\n".join(_module(fedpatch.metrics)),
        cells="\n".join(_cells()),
    )


def _module(module: ModuleType) -> Iterator[str]:
    names = [name for name in module.__all__ if callable(getattr(module, name))]
    yield f"Import: `from fedpatch import {module.__name__.rpartition('.')[2]}`"
    for name in names:
        found = getattr(module, name)
        yield from _described(name, found)
        if inspect.isclass(found):
            methods = inspect.getmembers(found, inspect.isfunction)
            for method, function in (one for one in methods if not one[0].startswith("_")):
                yield from _described(f"{name}.{method}", function, "####")


def _described(name: str, found: Any, heading: str = "###") -> Iterator[str]:
    text = inspect.getdoc(found) or ""
    yield f"\n{heading} {name}\n\n{text.partition(chr(10) + chr(10))[0]}\n"
    arguments = list(_arguments(text))
    yield f"`{name}{_signature(found)}`" + ("\n" if arguments else "")
    for argument, meaning in arguments:
        yield f"- `{argument}`: {meaning}"


def _signature(found: Any) -> str:
    signature = inspect.signature(found)
    plain = [
        one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values() if one.name != "self"
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """Return name and meaning of each argument of a docstring."""
    part = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    for entry in re.split(r"^    (?=\w+: )", part[1] if part else "", flags=re.MULTILINE)[1:]:
        argument, _, meaning = entry.partition(": ")
        yield argument, " ".join(meaning.split())


def _cells() -> Iterator[str]:
    """Return the table of the docstring as a table of Markdown."""
    lines = [line.strip() for line in (cell_values.__doc__ or "").splitlines() if line.startswith("    ")]
    for number, line in enumerate(lines):
        text, value = re.split(r" {2,}", line, maxsplit=1)
        yield f"| {text} | {value} |"
        if not number:
            yield "|---|---|"
