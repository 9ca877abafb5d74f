"""Write the generated pages of docs/reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference import commands, configuration, exit_codes, files, metrics, topics

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": commands.page,
    "configuration.md": configuration.page,
    "exit-codes.md": exit_codes.page,
    "files.md": files.page,
    "metrics.md": metrics.page,
    "topics.md": topics.page,
}


def main() -> None:
    """Write each page."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
