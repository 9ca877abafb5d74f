"""Write the pages of docs that are generated from the product; `python -m studies.pages` writes those of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference import (
    commands,
    conditions,
    configuration,
    exit_codes,
    metrics,
    preferences,
    task_functions,
    topics,
    what_leaves,
)

FOLDER = Path(__file__).resolve().parents[2] / "docs"
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": commands.page,
    "reference/conditions.md": conditions.page,
    "reference/configuration.md": configuration.page,
    "reference/exit-codes.md": exit_codes.page,
    "reference/metrics.md": metrics.page,
    "reference/preferences.md": preferences.page,
    "reference/task-functions.md": task_functions.page,
    "reference/topics.md": topics.page,
    "reference/what-leaves.md": what_leaves.page,
}


def main() -> None:
    """Write each page."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
