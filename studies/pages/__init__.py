"""Generated pages of docs and results: `python -m studies.pages` writes them.

Each module makes one page, or a section of one, from the files below results/; a template has its prose.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
RESULTS = Path(__file__).resolve().parents[2] / "results"
