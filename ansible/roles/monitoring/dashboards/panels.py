"""The kinds of panels of the dashboards, with the common options of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.dashboard import DashboardLink, FieldColor, ThresholdsConfig
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.looks import OK, SMALL, Look, Query

PROMETHEUS = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_PLAIN = Look()


class _Panel(Protocol):
    """Methods that the builders of all kinds share; the SDK has no name for them."""

    def title(self, title: str) -> Self: ...
    def description(self, description: str) -> Self: ...
    def datasource(self, datasource: models.DataSourceRef) -> Self: ...
    def span(self, w: int) -> Self: ...
    def height(self, h: int) -> Self: ...
    def unit(self, unit: str) -> Self: ...
    def min(self, min_val: float) -> Self: ...
    def max(self, max_val: float) -> Self: ...
    def decimals(self, decimals: float) -> Self: ...
    def mappings(self, mappings: list[models.ValueMapping]) -> Self: ...
    def thresholds(self, thresholds: Builder[models.ThresholdsConfig]) -> Self: ...
    def color_scheme(self, color: Builder[models.FieldColor]) -> Self: ...
    def data_links(self, links: list[Builder[models.DashboardLink]]) -> Self: ...
    def no_value(self, no_value: str) -> Self: ...
    def with_target(self, target: Builder[Dataquery]) -> Self: ...


P = TypeVar("P", bound=_Panel)


def lines(title: str, about: str, queries: Sequence[Query], look: Look = _PLAIN) -> timeseries.Panel:
    """Return a panel of values over time."""
    panel = (
        timeseries.Panel()
        .draw_style(options.GraphDrawStyle.LINE)
        .line_width(2)
        .fill_opacity(0)
        .show_points(options.VisibilityMode.AUTO)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING))
    )
    return _over_time(_dressed(panel, title, about, look), queries)


def stack(title: str, about: str, queries: Sequence[Query], look: Look = _PLAIN) -> timeseries.Panel:
    """Return a panel of stacked values over time, which also shows their sum."""
    return (
        lines(title, about, queries, look)
        .line_width(1)
        .fill_opacity(60)
        .show_points(options.VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(options.StackingMode.NORMAL).group("A"))
    )


def number(title: str, about: str, query: Query, look: Look = SMALL) -> stat.Panel:
    """Return a panel with the newest value in large type."""
    panel = stat.Panel().graph_mode(options.BigValueGraphMode.NONE).reduce_options(_newest())
    return _of_now(_dressed(panel, title, about, look), [query])


def ranking(title: str, about: str, queries: Sequence[Query], look: Look = _PLAIN) -> bargauge.Panel:
    """Return a panel with the newest value of each series as a bar, one below the other, in the order of the queries."""
    panel = (
        bargauge.Panel()
        .display_mode(options.BarGaugeDisplayMode.GRADIENT)
        .orientation(options.VizOrientation.HORIZONTAL)
        .reduce_options(_newest())
    )
    return _of_now(_dressed(panel, title, about, look), queries)


def timeline(title: str, about: str, queries: Sequence[Query], look: Look) -> statetimeline.Panel:
    """Return a panel with a strip per series; `look` gives the colour of each value."""
    panel = (
        statetimeline.Panel()
        .show_value(options.VisibilityMode.NEVER)
        .row_height(0.9)
        .fill_opacity(80)
        .merge_values(True)
        .legend(_legend())
    )
    return _over_time(_dressed(panel, title, about, look), queries)


def listing(
    title: str, about: str, query: Query, look: Look, columns: Sequence[tuple[str, str]], value: str
) -> table.Panel:
    """Return a table with a row per series: its labels, `columns` of (label, heading), and its value under `value`."""
    headings = {**dict(columns), "Value": value}
    order = {name: place for place, name in enumerate(headings)}
    organize = {"excludeByName": {}, "indexByName": order, "renameByName": headings}
    panel = (
        table.Panel()
        .show_header(True)
        .align(options.FieldTextAlignment.AUTO)
        .cell_options(options.TableAutoCellOptions())
        .inspect(False)
        .with_transformation(_transformation("filterFieldsByName", {"include": {"names": list(headings)}}))
        .with_transformation(_transformation("organize", organize))
    )
    target = _asked(query, 0).instant().format(PromQueryFormat.TABLE)
    return _dressed(panel, title, about, look).with_target(target)


def _dressed(panel: P, title: str, about: str, look: Look) -> P:
    panel = panel.title(title).description(about).datasource(PROMETHEUS).span(look.width).height(look.height)
    panel = panel.unit(look.unit).no_value(look.empty)
    if look.least is not None:
        panel = panel.min(look.least)
    if look.most is not None:
        panel = panel.max(look.most)
    if look.decimals is not None:
        panel = panel.decimals(look.decimals)
    if look.steps:
        steps = [models.Threshold(value=None, color=OK)]
        steps += [models.Threshold(value=value, color=color) for value, color in look.steps]
        panel = panel.thresholds(ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        panel = panel.color_scheme(FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    if look.link:
        panel = panel.data_links([DashboardLink("Show the device").type(models.DashboardLinkType.LINK).url(look.link)])
    if look.words:
        words = {
            str(value): models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, text, color) in enumerate(look.words)
        }
        panel = panel.mappings([models.ValueMap(options=words)])
    return panel


def _over_time(panel: P, queries: Sequence[Query]) -> P:
    for place, query in enumerate(queries):
        panel = panel.with_target(_asked(query, place).range())
    return panel


def _of_now(panel: P, queries: Sequence[Query]) -> P:
    for place, query in enumerate(queries):
        panel = panel.with_target(_asked(query, place).instant())
    return panel


def _asked(query: Query, place: int) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + place))


def _newest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(options.LegendDisplayMode.LIST)
        .placement(options.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _transformation(name: str, settings: object) -> models.DataTransformerConfig:
    return models.DataTransformerConfig(id_val=name, options=settings)
