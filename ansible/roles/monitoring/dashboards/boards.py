"""Parts of all dashboards: variables, links between them, and their JSON files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import PROMETHEUS

TAG = "fedpatch"
# Selects a coordinator by its address in Prometheus.
OF_COORDINATOR = 'instance="$coordinator"'


@dataclass(frozen=True)
class Section:
    """Panels under a heading, from left to right and from top to bottom."""

    heading: str
    panels: Sequence[Builder[models.Panel]]


def board(uid: str, title: str, about: str) -> Dashboard:
    """Return an empty dashboard of one coordinator; `uid` must never change, because links and bookmarks contain it."""
    source = DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    return (
        Dashboard(title)
        .uid(uid)
        .description(about)
        .tags([TAG])
        .timezone("browser")
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(source)
        .with_variable(choice("coordinator", "Coordinator", "label_values(fedpatch_build_info, instance)"))
        .link(_to_the_others())
    )


def filled(built: Dashboard, sections: Sequence[Section]) -> Dashboard:
    """Return the dashboard with these sections, one below the other."""
    for section in sections:
        built = built.with_row(Row(section.heading))
        for panel in section.panels:
            built = built.with_panel(panel)
    return built


def choice(name: str, label: str, query: str) -> QueryVariable:
    """Return a variable with the present values of `query` in Prometheus, such as label_values(METRIC, LABEL)."""
    return (
        QueryVariable(name)
        .label(label)
        .datasource(PROMETHEUS)
        .query({"query": query, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
    )


def to_text(built: Dashboard) -> str:
    """Return the JSON for Grafana, with a different number for every panel; the same dashboard gives the same JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    for number, panel in enumerate(plain["panels"], start=1):
        panel["id"] = number
        # The SDK gives every table an empty footer, which newer Grafana versions no longer have.
        if panel["type"] == "table":
            panel["options"].pop("footer", None)
    for variable in plain["templating"]["list"]:
        # The SDK writes these keys for every variable; Grafana's schema has them for intervals only.
        for name in ("auto", "auto_min", "auto_count"):
            variable.pop(name, None)
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def _to_the_others() -> DashboardLink:
    return (
        DashboardLink("fedpatch")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )
