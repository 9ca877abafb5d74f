"""Output of a benchmark: one JSON document, and tables made from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import UsageError

Document = dict[str, Any]

Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON document there too.")]
Toy = Annotated[bool, typer.Option("--toy", help="At the size of a smoke test, to see that it works.")]
Show = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Measure nothing: print the tables of such a document again.")
]


DeviceCounts = Annotated[str, typer.Option("--devices", metavar="N,M", help="Numbers of devices.")]


def parse_counts(devices: str) -> list[int]:
    """Return the numbers of devices of the option. Raises UsageError for anything but numbers from 1."""
    counts = [int(part) for part in devices.split(",") if part.strip().isdecimal() and int(part)]
    if len(counts) != len(devices.split(",")):
        raise UsageError(f"--devices: {devices!r} is not a list of numbers from 1, such as 10,50")
    return counts


def deliver(document: Document, tables: Callable[[Document], Iterable[str]], out: Path | None, as_json: bool) -> None:
    """Write the document to the file, and print it: as JSON, or as tables in Markdown."""
    text = kept(document, out)
    typer.echo(text if as_json else "\n".join(tables(document)))


def kept(document: Document, out: Path | None) -> str:
    """Return the document as JSON, and write it to the file, if there is one."""
    text = json.dumps(document, indent=1, allow_nan=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, f"{text}\n".encode(), mode=0o644)
    return text


def read_document(path: Path, benchmark: str) -> Document:
    """Return a document that `deliver` wrote; raise UsageError for any other file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}); give the file of --out") from error
    if not isinstance(found, dict) or found.get("benchmark") != benchmark:
        raise UsageError(f"{path} is no document of benchmarks.{benchmark}; give a file that its --out wrote")
    return found


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    """Yield the lines of a table in Markdown."""
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def within(found: Mapping[str, float], digits: int = 2) -> str:
    """Format a median with its spread."""
    return f"{found['median']:.{digits}f} ({found['min']:.{digits}f} to {found['max']:.{digits}f})"


def machine_line(document: Document) -> str:
    """Format machine and command as a line."""
    machine = document["machine"]
    text = f"{machine['cores']} cores ({machine['cpu']}), load {machine['load']} at the start, {machine['begun']}"
    return f"`{document['command']}`: {text}"
