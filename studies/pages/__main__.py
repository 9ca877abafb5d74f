"""Write the pages of docs that are generated from results, and the tables of results that they link to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from studies import masked_rounds
from studies.pages import RESULTS, personalisation, privacy, results, robustness

FOLDER = RESULTS.parent / "docs"
PAGES: Mapping[str, Callable[[], str]] = {
    "explanation/methods.md": personalisation.page,
    "explanation/privacy.md": privacy.page,
    "explanation/results.md": results.page,
    "explanation/when-devices-lie.md": robustness.page,
    "../results/benchmarks/masked-rounds.md": masked_rounds.page,
    "../results/personalisation/tables.md": personalisation.tables,
    "../results/robustness/tables.md": robustness.tables,
    "../results/experiments.md": results.experiments,
}


def main() -> None:
    """Write each page."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
