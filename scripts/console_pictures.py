"""Take the pictures of the web console for the documentation, of a real run: `python -m scripts.console_pictures`.

A demo with a console trains ten devices; Chromium takes the pictures in an open round after enough rounds.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.browser import Browser

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 200_000
"""A picture must stay below this size: it lies in the repository."""

_SHOTS = (("console", 1280, 1080, False), ("console-dark", 1280, 1080, True), ("console-phone", 390, 1180, False))
_ROUNDS_FIRST = 8
_OPTIONS = ("--devices", "10", "--rounds", "400", "--target-ua", "none", "--metrics", "none", "--console")
# The moment when some devices have reported and others have not, so the states of a round differ.
_IN_THE_MIDDLE = """(() => { const states = new Set([...document.querySelectorAll('#chips .dot')].map(d => d.dataset.s));
  const rounds = +document.querySelector('#rounds-table tbody th')?.textContent;
  return rounds >= %d && states.size >= 2 && states.has('training'); })()"""


def main() -> None:
    """Run the demo, take the pictures, end the demo."""
    with tempfile.TemporaryDirectory(prefix="fedpatch-pictures-") as name:
        command = [sys.executable, "-m", "fedpatch", "demo", *_OPTIONS, "--out", str(Path(name) / "demo")]
        demo = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert demo.stderr is not None
        try:
            lines = (line for line in demo.stderr if line.startswith("console: "))
            _take(next(lines).removeprefix("console: ").strip(), Path(name) / "profile")
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate()


def _take(url: str, profile: Path) -> None:
    with Browser(profile) as browser:
        for name, width, height, dark in _SHOTS:
            browser.open(url, width=width, height=height, dark=dark)
            browser.wait_for(_IN_THE_MIDDLE % _ROUNDS_FIRST)
            picture = browser.picture()
            if len(picture) > MAX_BYTES:
                raise SystemExit(f"{name}.png has {len(picture)} bytes, more than {MAX_BYTES}; make its window smaller")
            (IMAGES / f"{name}.png").write_bytes(picture)
            print(json.dumps({"picture": f"docs/images/{name}.png", "bytes": len(picture)}))  # noqa: T201


if __name__ == "__main__":
    main()
