"""A real Prometheus for tests, which scrapes one address, and promtool."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.brokers import HOST, free_port

PATIENCE_S = 120.0

_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.1


def binary(name: str) -> str:
    """Path of `prometheus` or `promtool`; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (apt install prometheus)")
    return found


def fetch(url: str) -> str:
    """What an address of this machine serves."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def lint(text: str) -> str:
    """What promtool has to say against metrics as they are served; "" where it likes them."""
    done = subprocess.run(
        [binary("promtool"), "check", "metrics"],
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout.decode() or ("" if done.returncode == 0 else f"promtool ended with {done.returncode}")


class Prometheus:
    """Scrapes `target` (HOST:PORT) twice a second while its `with` lasts."""

    def __init__(self, target: str) -> None:
        self._binary = binary("prometheus")
        self._target = target
        self._url = f"{HOST}:{free_port()}"
        self._files = contextlib.ExitStack()

    def __enter__(self) -> Prometheus:
        directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-prometheus-")))
        config = directory / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            f"scrape_configs: [{{job_name: fedpatch, static_configs: [{{targets: ['{self._target}']}}]}}]\n"
        )
        options = [f"--config.file={config}", f"--storage.tsdb.path={directory}", f"--web.listen-address={self._url}"]
        log = self._files.enter_context((directory / "log").open("w+b"))
        self._process = subprocess.Popen([self._binary, *options], stdout=log, stderr=log)
        self._files.callback(self._end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def ask(self, path: str, **given: str) -> Any:
        """The data of an answer of its HTTP API; OSError while it does not listen, AssertionError where it refuses."""
        try:
            return json.loads(fetch(f"http://{self._url}/api/v1/{path}?{urllib.parse.urlencode(given)}"))["data"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it has only just begun
                raise
            raise AssertionError(f"{given}: {error.read().decode()}") from None

    def value(self, query: str) -> float | None:
        """The one value that a query has now; None for none."""
        result = self.ask("query", query=query)["result"]
        assert len(result) < 2, f"{query} has {len(result)} values"
        return float(result[0]["value"][1]) if result else None

    def wait(self, fits: Callable[[], object], what: str) -> None:
        """Return once `fits()` is true; TimeoutError if it never is."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            assert self._process.poll() is None, "Prometheus has ended"
            with contextlib.suppress(OSError):
                if fits():
                    return
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"never: {what}")
            time.sleep(_POLL_S)

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
