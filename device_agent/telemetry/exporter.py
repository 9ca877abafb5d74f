"""Serves an agent's gauges: at an address of its own, and in a file for node_exporter.

A failure of either does not affect the agent's work.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from fedpatch.shared.app.files import remedy_for
from fedpatch.shared.app.http_server import LimitedHandler, LimitedServer
from fedpatch.shared.config.listen_address import Address

WRITE_EVERY_S = 60.0
"""An SD card wears out with writes."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_LIMIT_S = 5.0
_FILE_MODE = 0o644

_log = logging.getLogger("fedpatch.metrics")


class Endpoint:
    """Serves the result of `text` at http://HOST:PORT/metrics, one client after the other, in a thread of its own.

    Raises OSError if the address is not available. `text` is called in that thread.
    """

    def __init__(self, address: Address, text: Callable[[], str]) -> None:
        class Handler(_Handler):
            metrics = staticmethod(text)

        self._server = LimitedServer(address.host, address.port, Handler)
        self.url = f"http://{Address(address.host, self._server.port)}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(LimitedHandler):
    """Serves one page."""

    metrics: Callable[[], str]
    timeout = _CLIENT_LIMIT_S
    server_version = "fedpatch-agent"

    def do_GET(self) -> None:  # noqa: N802  (http.server calls it by this name)
        """Serve the page, or 404."""
        found = self.path.partition("?")[0] == "/metrics"
        body = (self.metrics() if found else "The metrics are at /metrics.\n").encode()
        self.send(200 if found else 404, CONTENT_TYPE if found else "text/plain; charset=utf-8", body)


class TextFile:
    """A file that node_exporter's textfile collector reads: replaced in one rename, at most every WRITE_EVERY_S."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: object = None
        self._refused = ""
        self._due_at = 0.0
        self._waits = False

    def show(self, what: object, text: Callable[[], str], now: float) -> None:
        """Write a text, if it is new and the last write is long enough ago.

        Args:
            what: Name of the text.
            now: Monotonic seconds.
        """
        self._waits = what != self._written
        if not self._waits or now < self._due_at:
            return
        self._due_at, self._waits = now + WRITE_EVERY_S, False
        try:
            _replace(self._path, text())
        except OSError as error:
            self._complain(error)
        else:
            self._written, self._refused = what, ""

    def next_deadline(self) -> float | None:
        """Return the time at which a waiting text may be written."""
        return self._due_at if self._waits else None

    def remove(self) -> None:
        """Delete the file: old values would look like present ones."""
        for path in (self._path, _unfinished(self._path)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Log an error once for as long as it lasts."""
        problem = error.strerror or str(error)
        if problem != self._refused:
            self._refused = problem
            remedy = remedy_for(error, "metrics_textfile names a file in a directory that this user may write to")
            _log.warning("no metrics in %s: %s; %s", self._path, problem, remedy)


def _replace(path: Path, text: str) -> None:
    """Replace a file, so that readers see the old text or the new one; not flushed, since it is useless after a power cut."""
    unfinished = _unfinished(path)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, _FILE_MODE)  # for any umask
        file.write(text)
    os.replace(unfinished, path)


def _unfinished(path: Path) -> Path:
    """Return a fixed name, so that a killed agent leaves one file at most; node_exporter reads *.prom only."""
    return path.with_name(f".{path.name}.tmp")
