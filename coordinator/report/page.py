"""The whole page: it loads nothing and runs nothing, and says so to the browser."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.report.comparison import comparison
from coordinator.report.markup import Markup, element
from coordinator.report.page_style import STYLE
from coordinator.report.sections import moment, run_section
from coordinator.report.series import Run

# A browser that keeps to this fetches nothing and runs no script, whatever the page holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def make_page(runs: Sequence[Run], made_at: float, version: str) -> str:
    """The report of one run, or of several with a comparison first, as HTML; `made_at` in unix seconds."""
    ids = ", ".join(run.info.id for run in runs)
    name = f"Run {ids}" if len(runs) == 1 else f"{len(runs)} runs compared"
    going_on = any(run.info.status == "running" for run in runs)
    made = f"Made {moment(made_at)} by fedpatch {version}" + (", while a run was going on." if going_on else ".")
    keys = [f"run-{number}" for number in range(1, len(runs) + 1)]
    parts = [element("header", element("h1", "fedpatch report"), element("p", made))]
    if len(runs) > 1:
        parts += [_contents(runs, keys), comparison(runs)]
    parts += [run_section(run, key) for run, key in zip(runs, keys, strict=True)]
    body = element("body", element("main", *parts))
    return f"<!DOCTYPE html>\n{element('html', _head(f'fedpatch report: {name}'), body, lang='en')}\n"


def _contents(runs: Sequence[Run], keys: Sequence[str]) -> Markup:
    links = [("comparison", "The runs compared"), *((key, run.info.id) for key, run in zip(keys, runs, strict=True))]
    items = [element("li", element("a", words, href=f"#{key}")) for key, words in links]
    return element("nav", element("ul", *items), aria_label="Contents")


def _head(title: str) -> Markup:
    return element(
        "head",
        Markup('<meta charset="utf-8"/>'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        Markup('<meta name="color-scheme" content="light dark"/>'),
        element("title", title),
        element("style", Markup(STYLE)),
    )
