"""`make recording`: runs the demo in a terminal (tmux) and draws its screens as docs/images/demo.svg.

Only CSS animates the picture: no script, no font, nothing from another host. Each different line is drawn once.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, ROWS = 92, 26
LONGEST_S, LAST_S = 1.0, 5.0
"""A screen is shown no longer than LONGEST_S, the last screen for LAST_S before the picture starts again."""

_LOOK_S = 0.15
_WIDTH, _HEIGHT, _MARGIN = 8.4, 18, 12
_INK, _PAPER = "#d6deeb", "#10202d"
_CONSOLE = Console(width=COLUMNS, color_system="truecolor")


@dataclass(frozen=True)
class Screen:
    """The lines of the terminal at `at_s`, with ANSI colours."""

    at_s: float
    lines: tuple[str, ...]


def record(command: str, cwd: Path, patience_s: float = 600.0) -> list[Screen]:
    """Type `command` into a new terminal, and record the terminal until the command has ended."""
    with tempfile.TemporaryDirectory(prefix="fedpatch-recording-") as name:
        ended, socket = Path(name) / "ended", str(Path(name) / "tmux")
        shell = f"printf '$ %s\\n' {shlex.quote(command)}; {command}; touch {ended}; sleep 600"
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
        subprocess.run([*tmux, "new-session", "-d", *size, "-c", str(cwd), shell], check=True)
        try:
            return _look([*tmux, "capture-pane", "-e", "-p"], ended, patience_s)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)


def _look(capture: list[str], ended: Path, patience_s: float) -> list[Screen]:
    began, screens = time.monotonic(), list[Screen]()
    while (now := time.monotonic()) - began < patience_s:
        over = ended.exists()
        seen = subprocess.run(capture, capture_output=True, text=True, check=True).stdout.rstrip().split("\n")
        if not screens or screens[-1].lines != tuple(seen):
            screens.append(Screen(now - began, tuple(seen)))
        if over:
            return screens
        time.sleep(_LOOK_S)
    raise TimeoutError(f"the recorded command still runs after {patience_s:g} s; record one that ends, or wait longer")


def draw(screens: Sequence[Screen], title: str) -> str:
    """Return the SVG: one group for each screen, shown one after the other."""
    stays = [min(LONGEST_S, after.at_s - one.at_s) for one, after in pairwise(screens)] + [LAST_S]
    total = sum(stays)
    lines = {
        line: f"l{index}" for index, line in enumerate(dict.fromkeys(x for one in screens for x in one.lines if x))
    }
    width, height = COLUMNS * _WIDTH + 2 * _MARGIN, ROWS * _HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;fill:{_INK};white-space:pre}}"
        f".s{{visibility:hidden;animation:{total:.2f}s step-end infinite}}",
    ]
    at_s = 0.0
    for index, stay in enumerate(stays):
        begin, end = 100 * at_s / total, 100 * (at_s + stay) / total
        last = "" if index == len(stays) - 1 else f"{end:.3f}%{{visibility:hidden}}"
        parts.append(f"@keyframes k{index}{{0%{{visibility:hidden}}{begin:.3f}%{{visibility:visible}}{last}}}")
        at_s += stay
    # With reduced motion, only the last screen is shown.
    parts.append(
        "@media (prefers-reduced-motion:reduce){.s{animation:none!important}.s:last-child{visibility:visible}}</style>"
    )
    parts.append(f'<rect width="100%" height="100%" rx="8" fill="{_PAPER}"/><defs>')
    parts += [f'<text id="{name}">{_spans(line)}</text>' for line, name in lines.items()]
    parts.append("</defs>")
    for index, one in enumerate(screens):
        used = "".join(
            f'<use href="#{lines[line]}" x="{_MARGIN}" y="{_MARGIN + _HEIGHT * (row + 0.75):g}"/>'
            for row, line in enumerate(one.lines)
            if line
        )
        parts.append(f'<g class="s" style="animation-name:k{index}">{used}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _spans(line: str) -> str:
    drawn, column = "", 0
    for segment in Text.from_ansi(line, end="").render(_CONSOLE):
        style = segment.style or Style()
        look = f' fill="{_hex(style.color)}"' if style.color and not style.color.is_default else ""
        look += ' font-weight="bold"' if style.bold else ""
        look += ' opacity=".6"' if style.dim else ""
        drawn += f'<tspan x="{column * _WIDTH:g}"{look}>{escape(segment.text)}</tspan>' if segment.text.strip() else ""
        column += segment.cell_length
    return drawn


def _hex(color: Color) -> str:
    return color.get_truecolor().hex


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.recording", description="Record the demo as an SVG.")
    parser.add_argument("--out", type=Path, default=Path("docs/images/demo.svg"), help="the picture")
    parser.add_argument("--command", default="fedpatch demo --out demo-out", help="what is typed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedpatch-recording-") as cwd:
        screens = record(asked.command, Path(cwd))
    asked.out.write_text(draw(screens, f"A recording of: {asked.command}"), "utf-8")


if __name__ == "__main__":
    main()
