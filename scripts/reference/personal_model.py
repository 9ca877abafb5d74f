"""The page personal-model.md: with the table of int8 models, from results/benchmarks."""

from __future__ import annotations

from pathlib import Path

from scripts.reference.markdown import render

TABLE = Path(__file__).resolve().parents[2] / "results" / "benchmarks" / "int8-models.md"


def page() -> str:
    """Return the page."""
    lines = TABLE.read_text("utf-8").splitlines()
    return render("personal-model.md", int8="\n".join(line for line in lines if line.startswith("|")))
