"""A headless Chromium that tests drive over a pipe (the DevTools protocol): it opens and inspects pages."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

PATIENCE_S = 100.0
_PROGRAM = shutil.which("chromium")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # root could not start it otherwise; it opens only our own pages
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One page in a Chromium of its own. `complaints` are its console messages and the failures in the page."""

    def __init__(self, profile: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        self._process, self._to, self._from = _start(profile)

    def __enter__(self) -> Self:
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        try:
            self._process.wait(10)  # Chromium ends when the pipe is closed
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def open(
        self, page: Path | str, *, width: int = 1000, height: int = 900, dark: bool = False, paper: bool = False
    ) -> None:
        """Load a file or a URL, for a window of this size in CSS pixels or for a printer; wait until it is loaded."""
        url = page if isinstance(page, str) else page.absolute().as_uri()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self._call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"{expression} was not true within {PATIENCE_S} s"
            time.sleep(0.02)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, as plain data."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def accessible(self) -> list[tuple[str, str]]:
        """(role, name) of everything exposed to assistive technology."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        exposed = [one for one in nodes if not one["ignored"] and "role" in one]
        return [(one["role"]["value"], str(one.get("name", {}).get("value", ""))) for one in exposed]

    def picture(self) -> bytes:
        """Return the content of the window as a PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for answer in self._read(deadline):
                if answer.get("id") == self._number:
                    assert "error" not in answer, (method, answer)
                    return dict(answer["result"])
                self._note(answer)

    def _read(self, deadline: float) -> Iterator[dict[str, Any]]:
        if b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "Chromium ended"
            self._unread += data
        while b"\0" in self._unread:
            line, _, self._unread = self._unread.partition(b"\0")
            yield json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded" | "Network.loadingFailed":
                self.complaints.append(json.dumps(parameters))
            case "Network.requestWillBeSent":
                self.requests.append(str(parameters["request"]["url"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with the new profile `profile`; the test is skipped where there is no Chromium."""
    if _PROGRAM is None:
        pytest.skip("no chromium here (on Debian: apt install chromium)")
    with Browser(profile) as opened:
        yield opened


def _start(profile: Path) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start Chromium, which reads commands from descriptor 3 and writes answers to 4."""
    assert _PROGRAM is not None
    its_input, to_it = os.pipe()
    from_it, its_output = os.pipe()
    ends = f'exec 3<&{its_input} 4>&{its_output}; exec "$0" "$@"'
    process = subprocess.Popen(
        ["bash", "-c", ends, _PROGRAM, *_FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(its_input, its_output),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(its_input)
    os.close(its_output)
    return process, to_it, from_it
