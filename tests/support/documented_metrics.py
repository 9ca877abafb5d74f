"""The table of docs/reference/metrics.md, and what an endpoint serves in the same terms."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
_ROW = re.compile(r"^\| `([a-z_0-9]+)` \| (gauge|counter|histogram) \| ([a-z_, ]*) ?\| (\S.*) \|$", re.MULTILINE)

Described = dict[str, tuple[str, frozenset[str]]]
"""Type and labels by name; a counter with its `_total`, a histogram without its endings."""


def documented(*, agent: bool = False) -> Described:
    """What the page says there is, at a coordinator's endpoint or at an agent's."""
    rows = _ROW.findall(PAGE)
    assert len(rows) == len(re.findall(r"^\| `(?:fedpatch|process)_", PAGE, re.MULTILINE)), (
        "a row of the table cannot be read"
    )
    return {
        name: (kind, frozenset(filter(None, labels.strip().split(", "))))
        for name, kind, labels, _ in rows
        if name.startswith("fedpatch_agent_") == agent
    }


def served(text: str) -> Described:
    """What there is; a family without a series is not there."""
    found: Described = {}
    for family in text_string_to_metric_families(text):
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        if labels:
            assert len(labels) == 1, f"{family.name} has series with different labels"
            found[family.name + "_total" * (family.type == "counter")] = (family.type, labels.pop())
    return found
