"""A table of simulations on disk: its terms, and one cell a line. A repeated command computes only missing cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.errors import UsageError
from fedpatch.simulator.spec.plain_values import from_plain

_MODE = 0o644


class CellLike(Protocol):
    """A dataclass with the figures of one simulation."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The terms of the simulation, which identify the cell."""


Cell = TypeVar("Cell", bound=CellLike)


class CellFile(Generic[Cell]):
    """The cells of a table; each is written as soon as it is computed.

    Args:
        path: The file; None: nothing is written.
        terms: Plain values that all cells share.
        kind: The dataclass of a cell.
        command: The command whose table this is, for messages.
        origin: Further plain values for the file, such as the command line.

    Raises:
        UsageError: The file has other terms, or is not such a table.
    """

    def __init__(
        self,
        path: Path | None,
        terms: Mapping[str, Any],
        kind: type[Cell],
        command: str,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self._path, self._kind, self._command = path, kind, command
        self._origin = dict(origin or {})
        self._terms: dict[str, Any] = json.loads(json.dumps(dict(terms)))
        self.cells: dict[tuple[Any, ...], Cell] = {}
        self._read()

    def add(self, cell: Cell) -> None:
        """Add a cell, and write the file, with the cells that another process has added meanwhile.

        Raises UsageError if the file got other terms meanwhile.
        """
        self._read()
        self.cells[cell.key] = cell
        if self._path is not None:
            plain = self.to_dict()
            rows = ",\n".join(json.dumps(one) for one in plain.pop("cells"))
            text = f'{json.dumps(plain, indent=1)[:-2]},\n "cells": [\n{rows}\n]}}\n'
            with refusals_of(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self._path, text.encode(), mode=_MODE)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        cells = [asdict(cell) for cell in self.cells.values()]  # type: ignore[call-overload]  # cells are dataclasses
        return {"terms": self._terms, **self._origin, "cells": cells}

    def _read(self) -> None:
        path, kind = self._path, self._kind
        if path is None or not path.exists():
            return
        try:
            found = json.loads(path.read_text("utf-8"))
            terms: dict[str, Any] = msgspec.convert(found["terms"], dict)
            cells = [from_plain(kind, one, f"cell {number}") for number, one in enumerate(found["cells"], 1)]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError, UsageError) as error:
            raise UsageError(f"{path} is no table of {self._command} ({error}); choose another --out") from error
        other = sorted(name for name in {*terms, *self._terms} if terms.get(name) != self._terms.get(name))
        if other:
            raise UsageError(f"{path} has a table of other terms ({', '.join(other)}); choose another --out")
        self.cells |= {cell.key: cell for cell in cells}
