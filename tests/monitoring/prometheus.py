"""A real Prometheus server and promtool for tests."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.support.brokers import HOST, free_port

PATIENCE_S = 200.0
_ANSWER_LIMIT_S = 30.0


def promtool(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool with these arguments, `given` on its standard input; skips the test where it is not installed."""
    argv = [_program("promtool"), *arguments]
    return subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def fetch(url: str) -> str:
    """Return the content that a URL of this machine serves."""
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def lint(text: str) -> str:
    """Return promtool's errors for served metrics; "" if there are none."""
    done = promtool("check", "metrics", given=text)
    return done.stdout + done.stderr or ("" if done.returncode == 0 else f"promtool ended with {done.returncode}")


def scraping(*targets: str) -> str:
    """The configuration of a server that scrapes these `targets` (HOST:PORT) once a second."""
    return (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: fedpatch, static_configs: [{{targets: {list(targets)}}}]}}]\n"
    )


class Prometheus:
    """A server with this configuration, in a directory of its own; skips the test where it is not installed.

    `stored` has samples that it stored in an earlier life, in the format OpenMetrics with times.
    """

    def __init__(self, config: str, stored: str = "") -> None:
        program = _program("prometheus")
        self._files = contextlib.ExitStack()
        self._directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-prometheus-")))
        (self._directory / "prometheus.yml").write_text(config, "utf-8")
        if stored:
            (self._directory / "stored").write_text(stored, "utf-8")
            into = ("create-blocks-from", "openmetrics", self._directory / "stored", self._directory / "data")
            done = promtool("tsdb", *into)
            assert done.returncode == 0, done.stderr
        address = f"{HOST}:{free_port()}"
        self._url = f"http://{address}"
        self._log = self._files.enter_context((self._directory / "log").open("wb"))
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={self._directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        self.wait_until(lambda: self.get("status/buildinfo"), "answers")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._files.close()

    def get(self, path: str, **parameters: str) -> Any:
        """The data that its API has under `path`. Raises URLError (HTTPError for a query that it refuses)."""
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}", timeout=_ANSWER_LIMIT_S) as answer:
            return json.load(answer)["data"]

    def ask(self, expr: str) -> list[Any]:
        """The series that this PromQL has now."""
        series: list[Any] = self.get("query", query=expr)["result"]
        return series

    def value(self, expr: str) -> float | None:
        """The one value that this PromQL has now; None for none."""
        found = self.ask(expr)
        assert len(found) < 2, f"{expr} has {len(found)} values"
        return float(found[0]["value"][1]) if found else None

    def ask_until_there(self, expr: str) -> list[Any]:
        """Wait until this PromQL has series, and return them: while a scrape fails on a busy machine, there are none."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = self.ask(expr)
            return bool(found)

        self.wait_until(look, f"has data for {expr}")
        return found

    def wait_until(self, holds: Callable[[], object], what: str) -> None:
        """Return once `holds` is true; fail the test if the server ends or `holds` stays false."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            assert self._process.poll() is None, (self._directory / "log").read_text("utf-8")
            try:
                if holds():
                    return
            except HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:  # it is still starting
                    raise
            except (URLError, ConnectionError, TimeoutError):
                pass
            time.sleep(0.1)
        pytest.fail(f"Prometheus: no sign that it {what}, after {PATIENCE_S:g} s")


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed (apt install prometheus)")
    return program
