"""The page privacy.md: measured fleets from results/privacy, and the noise of planned fleets from shared.privacy."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import Any

from fedpatch.shared.privacy.plan import make_plan
from scripts.reference.markdown import render, table
from studies.pages import RESULTS, TEMPLATES

OUTCOMES = RESULTS / "privacy" / "outcomes.json"
EPSILON = 8.0
DEVICES = (10, 100, 1_000, 10_000)
PLANNED = (
    ("199,000 (2NN)", 199_000, 7),
    ("199,000", 199_000, 50),
    ("10,000 (adapter)", 10_000, 7),
    ("1,000 (shared head, the rest frozen)", 1_000, 7),
)


def page() -> str:
    """Return the page."""
    outcomes = json.loads(OUTCOMES.read_text("utf-8"))
    return render(
        TEMPLATES / "privacy.md",
        planned=planned(),
        measured=measured(outcomes),
    )


def planned() -> str:
    """Format the ratio of noise to clip by public values, rounds and devices."""
    rows = []
    for words, parameters, rounds in PLANNED:
        plans = (make_plan(devices=count, parameters=parameters, rounds=rounds, epsilon=EPSILON) for count in DEVICES)
        rows.append((words, str(rounds), *(f"{float(f'{plan.ratio:.2g}'):g}" for plan in plans)))
    return table(("public values", "rounds", *(f"{count:,} devices" for count in DEVICES)), rows)


def measured(outcomes: Iterable[dict[str, Any]]) -> str:
    """Format user accuracy with and without noise, as means over the seeds."""
    rows = [
        (
            one["fleet"],
            f"{one['plan']['devices']}",
            f"{one['plan']['rounds']}, {one['clip']:g}",
            f"{one['plan']['ratio']:.2g}",
            f"`{one['plan']['verdict']}`",
            f"{len(one['seeds'])}",
            *(f"{statistics.fmean(one[f'user_accuracy_{name}']):.3f}" for name in ("without", "with")),
        )
        for one in outcomes
    ]
    heads = (
        "shared",
        "devices",
        "rounds, clip",
        "noise / clip",
        "verdict",
        "seeds",
        "UA without",
        "UA with DP",
    )
    return table(heads, rows)
