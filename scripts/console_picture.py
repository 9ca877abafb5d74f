"""Take the picture of the web console for the documentation, of a real run: `python -m scripts.console_picture`.

A demo with a console trains ten devices; Chromium takes the picture in an open round after enough rounds.
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
PICTURE = ROOT / "docs" / "images" / "console.png"
MAX_BYTES = 200_000
"""A picture must stay below this size: it lies in the repository."""

_ROUNDS_FIRST = 8
_OPTIONS = ("--devices", "10", "--rounds", "400", "--target-ua", "none", "--metrics", "none", "--console")
# The moment when some devices have reported and others have not, so the states of a round differ.
_IN_THE_MIDDLE = """(() => { const states = new Set([...document.querySelectorAll('#chips .dot')].map(d => d.dataset.s));
  const rounds = +document.querySelector('#rounds-table tbody th')?.textContent;
  return rounds >= %d && states.size >= 2 && states.has('training'); })()"""


def main() -> None:
    """Run the demo, take the picture, end the demo."""
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
        browser.open(url, width=1280, height=1080)
        browser.wait_for(_IN_THE_MIDDLE % _ROUNDS_FIRST)
        picture = browser.picture()
        if len(picture) > MAX_BYTES:
            raise SystemExit(f"{PICTURE.name} has {len(picture)} bytes, more than {MAX_BYTES}; make its window smaller")
        PICTURE.write_bytes(picture)
        print(json.dumps({"picture": str(PICTURE.relative_to(ROOT)), "bytes": len(picture)}))  # noqa: T201


if __name__ == "__main__":
    main()
