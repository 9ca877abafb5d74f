"""Pictures of what was measured: each as PNG and as SVG, the same bytes for the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.files import write_atomic
from simulator.plots import as_png, as_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """As NAME.png and NAME.svg in `folder`, which is made where absent."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{name}.png", as_png(figure), mode=0o644)
    write_atomic(folder / f"{name}.svg", as_svg(figure), mode=0o644)
