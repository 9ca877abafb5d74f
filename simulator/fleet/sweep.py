"""A sweep: the same fleet under every combination of some settings, one row for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpatch.shared.config.fields import from_text, settings_of
from fedpatch.shared.config.load import load, public_values
from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.simulator.fleet.report import FleetReport
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.simulation import simulate_fleet


@dataclass(frozen=True)
class SweepAxis:
    """A term and its values to compare."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class SweepRow:
    """One combination: its changed terms and its result."""

    changes: Mapping[str, Any]
    report: FleetReport

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the single rounds."""
        ended = {"stopped_because": self.report.stopped_because, "virtual_s": self.report.virtual_s}
        return {"changes": dict(self.changes), **self.report.totals(), **ended}


OnRow = Callable[[SweepRow], None]


def parse_axis(text: str) -> SweepAxis:
    """Parse `over_select=1.0,1.3` or `over-select=...`. Raises UsageError for an unknown term or an invalid value."""
    name, _, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    known = {one.name: one for one in settings_of(FleetTerms)}
    if name not in known:
        raise unknown_name("term to compare", name, list(known))
    words = [word.strip() for word in listed.split(",") if word.strip()]
    if not words:
        raise UsageError(f"--compare {text}: names no values; write them as in {name}=1,2")
    try:
        return SweepAxis(name, tuple(dict.fromkeys(from_text(known[name], word) for word in words)))
    except ValueError as error:
        raise UsageError(f"--compare {text}: {error}") from None


def combine(terms: FleetTerms, axes: Sequence[SweepAxis]) -> list[tuple[dict[str, Any], FleetTerms]]:
    """Return all combinations, the last axis changing fastest. Raises ConfigError if one is invalid."""
    names = [axis.name for axis in axes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--compare {twice}: is there twice; put all its values behind one")
    given = public_values(terms)
    # Defaults are left out: they may depend on a compared value.
    usual = {one.name: one.default for one in settings_of(FleetTerms)} | FleetTerms.fit(given)
    shared = {name: value for name, value in given.items() if value != usual[name]}
    combined = []
    for values in itertools.product(*(axis.values for axis in axes)):
        changes = dict(zip(names, values, strict=True))
        combined.append((changes, load(FleetTerms, file=None, environ={}, flags={**shared, **changes})))
    return combined


def compare_policies(terms: FleetTerms, axes: Sequence[SweepAxis], on_row: OnRow = lambda _: None) -> list[SweepRow]:
    """Run every combination; `on_row` is called with each row when it is complete.

    All combinations have the same devices with the same random events (simulator.fleet.random_traits), so rows differ only
    by the compared terms.
    """
    rows = []
    for changes, changed in combine(terms, axes):
        rows.append(SweepRow(changes, simulate_fleet(changed)))
        on_row(rows[-1])
    return rows
