"""The metrics endpoint: it serves during a run, and a run continues without it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.observability.event_observer import NullObserver
from fedpatch.coordinator.observability.metrics_endpoint import observed
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.store_waits import BLOBS, StoreWaits
from fedpatch.shared.config.listen_address import Address, parse_address
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.mqtt.tls_errors import expiry_of
from tests.coordinator.engines import engine
from tests.monitoring.prometheus import fetch


class Printed:
    """A view that records its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.view: Any = SimpleNamespace(say=self.lines.append)


@pytest.fixture
def printed() -> Printed:
    return Printed()


def _settings(**given: Any) -> RunSettings:
    return RunSettings(**{"metrics": "127.0.0.1:0", **given})


def test_endpoint_serves_as_long_as_the_run(printed, tmp_path):
    with observed(_settings(), engine(), tmp_path, printed.view) as observer:
        url = printed.lines[0].removeprefix("metrics: ")
        observer.link(connected=False)
        text = fetch(url)
    assert "\nfedpatch_broker_connected 0.0\n" in text
    assert "_created" not in text
    with pytest.raises(urllib.error.URLError):
        fetch(url)


def test_time_of_a_request_to_a_silent_store_is_served(printed, tmp_path):
    seconds = [0.0]
    waits = StoreWaits(lambda: seconds[-1])
    with observed(_settings(), engine(), tmp_path, printed.view, waits=waits), waits.request(BLOBS, "s3://fleet", 90.0):
        seconds.append(40.0)
        text = fetch(printed.lines[0].removeprefix("metrics: "))
    assert '\nfedpatch_store_wait_seconds{store="registry"} 0.0\n' in text
    assert '\nfedpatch_store_wait_seconds{store="blobs"} 40.0\n' in text


def test_two_runs_in_one_process_have_separate_metrics(printed, tmp_path):
    with (
        observed(_settings(), engine(), tmp_path, printed.view) as one,
        observed(_settings(), engine(), tmp_path, printed.view),
    ):
        one.link(connected=False)
        texts = [fetch(line.removeprefix("metrics: ")) for line in printed.lines]
    for text, value in zip(texts, ("0.0", "1.0"), strict=True):
        assert f"fedpatch_broker_connected {value}" in text


@pytest.mark.parametrize("address", ["a..b:1", f"{'x' * 70}:1", "192.0.2.1:0"])
def test_address_that_cannot_be_used_costs_a_line_and_not_the_run(printed, tmp_path, address):
    with observed(_settings(metrics=address), engine(), tmp_path, printed.view) as observer:
        assert isinstance(observer, NullObserver)
    assert printed.lines[0].startswith(f"no metrics: cannot listen on {address}: ")


def test_run_on_a_taken_address_goes_on_without_metrics(printed, tmp_path):
    with observed(_settings(), engine(), tmp_path, printed.view) as first:
        first.link(connected=False)
        url = printed.lines.pop().removeprefix("metrics: ")
        address = url.removeprefix("http://").removesuffix("/metrics")
        with observed(_settings(metrics=address), engine(), tmp_path, printed.view) as second:
            assert isinstance(second, NullObserver)
            second.link(connected=True)
            assert "\nfedpatch_broker_connected 0.0\n" in fetch(url)
    (line,) = printed.lines
    assert line.startswith(f"no metrics: cannot listen on {address}: ") and "--metrics" in line


def test_run_without_prometheus_client_prints_the_extra_to_install(printed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for name in ("metric_definitions", "run_metrics"):
        monkeypatch.delitem(sys.modules, f"fedpatch.coordinator.observability.{name}", raising=False)
    with observed(_settings(), engine(), tmp_path, printed.view) as observer:
        assert isinstance(observer, NullObserver)
    assert "fedpatch[coordinator]" in printed.lines[0]


def test_metrics_address_none_opens_no_port(printed, tmp_path):
    settings = load(RunSettings, file=None, environ={}, flags={"metrics": "none"})
    with observed(settings, engine(), tmp_path, printed.view) as observer:
        assert isinstance(observer, NullObserver)
    assert printed.lines == []
    assert DemoSettings().metrics is None
    assert RunSettings().metrics == "127.0.0.1:9464"


def test_missing_directory_makes_free_bytes_nan(printed, tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    with observed(_settings(), engine(), directory, printed.view):
        url = printed.lines[0].removeprefix("metrics: ")
        assert "\nfedpatch_state_free_bytes NaN\n" not in fetch(url)
        directory.rmdir()
        assert "\nfedpatch_state_free_bytes NaN\n" in fetch(url)


@pytest.mark.parametrize(
    "text", ["9464", "host", ":1", "a:b", "a:-1", "a:65536", "::1:9464", "a b:1", "http://a:1", "a:²"]
)
def test_malformed_address_is_refused(text):
    with pytest.raises(UsageError):
        parse_address(text)
    with pytest.raises(ConfigError, match="metrics"):
        load(RunSettings, file=None, environ={}, flags={"metrics": text})


@given(
    host=st.from_regex(r"[a-z0-9.-]+", fullmatch=True) | st.sampled_from(["::1", "fe80::1"]),
    port=st.integers(0, 65_535),
)
def test_address_survives_formatting_and_parsing(host, port):
    assert parse_address(str(Address(host, port))) == Address(host, port)


def test_file_without_certificates_has_no_expiry(tmp_path):
    assert expiry_of(tmp_path / "none.pem") is None
    (tmp_path / "text.pem").write_text("no certificate")
    assert expiry_of(tmp_path / "text.pem") is None


def test_first_expiry_in_a_file_is_served(tmp_path, printed):
    files = []
    for days in (30, 10):
        files.append(tmp_path / f"{days}.pem")
        options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", tmp_path / "key"]
        line = ["openssl", "req", "-x509", *options, "-subj", f"/CN={days}", "-days", str(days), "-out", files[-1]]
        try:
            subprocess.run(line, check=True, capture_output=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("openssl is not installed (apt install openssl)")
    both = tmp_path / "ca.pem"
    both.write_text("".join(Path(one).read_text() for one in files))
    expiry = expiry_of(both)
    assert expiry is not None
    assert expiry - time.time() == pytest.approx(10 * 86_400, abs=3_600)
    settings = _settings(broker="mqtts://localhost", ca_file=both)
    with observed(settings, engine(), tmp_path, printed.view):
        text = fetch(printed.lines[0].removeprefix("metrics: "))
    assert 'fedpatch_certificate_expiry_timestamp_seconds{certificate="ca"}' in text
