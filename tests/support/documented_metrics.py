"""The metrics of docs/reference/metrics.md, and the metrics that an endpoint serves, in the same form."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
_ITEM = re.compile(r"^- `(fedpatch_[a-z_0-9]+)(?:\{([a-z_,]+)\})?`( \(histogram\))?: \S.*$", re.MULTILINE)
_ALIKE = re.compile(r"^As the series of single devices above: (.*)\.$", re.MULTILINE)
_NAMED = re.compile(r"`(fedpatch_agent_[a-z_]+)(?:\{([a-z_,]+)\})?`")
_PROCESS = re.compile(r"`(process_[a-z_0-9]+)`")

Described = dict[str, tuple[str, frozenset[str]]]
"""Type and labels by name; the name of a counter has its `_total`, that of a histogram no suffix."""


def documented(*, agent: bool = False) -> Described:
    """The metrics on the page, of a coordinator's endpoint or of an agent's."""
    items = _ITEM.findall(PAGE)
    assert len(items) == len(re.findall(r"^- `fedpatch_", PAGE, re.MULTILINE)), "an item of the list cannot be read"
    items += [(*named, "") for line in _ALIKE.findall(PAGE) for named in _NAMED.findall(line)]
    items += [(name, "", "") for name in _PROCESS.findall(PAGE)]
    return {
        name: (_kind(name, histogram), frozenset(filter(None, labels.split(","))))
        for name, labels, histogram in items
        if name.startswith("fedpatch_agent_") == agent
    }


def _kind(name: str, histogram: str) -> str:
    """Return the type that the page states: histograms are marked, the name gives the other types."""
    return "histogram" if histogram else "counter" if name.endswith("_total") else "gauge"


def served(text: str) -> Described:
    """Return the served metrics, without families that have no series."""
    found: Described = {}
    for family in text_string_to_metric_families(text):
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        if labels:
            assert len(labels) == 1, f"{family.name} has series with different labels"
            found[family.name + "_total" * (family.type == "counter")] = (family.type, labels.pop())
    return found
