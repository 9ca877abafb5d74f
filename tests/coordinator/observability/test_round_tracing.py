"""Traces of rounds: their spans, their limit of devices, and their export to a real OTLP receiver."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.observability.round_tracing import RoundTracer, endpoint_of, require_tracing, traced
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_effects import CountEvent, SaveRecord, SendMessage
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.wire.messages import Envelope, WorkRequest
from tests.support.brokers import free_port

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

SPEC: Any = SimpleNamespace(run="r-1", task="digits")
SECOND_NS = 10**9
NOW_NS = 1_000 * SECOND_NS


def record(number: int, failure: str = "") -> RoundRecord:
    return RoundRecord(
        number,
        "failed" if failure else "aggregated",
        cohort=2,
        accepted=2,
        declined=0,
        reported=2,
        user_accuracy=0.75,
        phase_seconds=PhaseSeconds(select=1.0, train=6.0, aggregate=1.0),
        failure=failure,
    )


def ask(device: str, number: int) -> SendMessage:
    return SendMessage(device, Envelope(object.__new__(WorkRequest), run="r-1", round=number))


@pytest.fixture
def memory() -> Any:
    """The finished spans of the SDK's in-memory exporter, and a tracer that writes to it."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return SimpleNamespace(spans=exporter.get_finished_spans, tracer=provider.get_tracer("test"))


def tracer_of(memory: Any, max_devices: int = 50) -> RoundTracer:
    return RoundTracer(memory.tracer, SPEC, max_devices, lambda: NOW_NS)


def test_round_is_one_trace_with_its_phases_in_order(memory):
    tracer = tracer_of(memory)
    tracer.performed(SaveRecord(record(1)), 107.0, 108.0)
    tracer.performed(SaveRecord(record(2)), 117.0, 118.0)
    first, second = (one for one in memory.spans() if one.parent is None)
    assert (first.name, second.name) == ("round 1", "round 2")
    assert first.context.trace_id != second.context.trace_id
    assert (first.start_time, first.end_time) == (NOW_NS - 8 * SECOND_NS, NOW_NS)
    assert first.attributes["fedpatch.user_accuracy"] == 0.75
    assert first.attributes["fedpatch.run"] == "r-1"
    phases = [one for one in memory.spans() if one.parent and one.parent.span_id == first.context.span_id]
    assert [one.name for one in phases] == ["select", "recruit", "download", "train", "upload", "aggregate"]
    assert all(one.end_time == next_.start_time for one, next_ in itertools.pairwise(phases))
    assert (phases[3].start_time, phases[3].end_time) == (NOW_NS - 7 * SECOND_NS, NOW_NS - SECOND_NS)


def test_devices_of_a_trace_are_bounded_and_have_outcome_and_times(memory):
    tracer = tracer_of(memory, max_devices=2)
    for device in ("pi-1", "pi-2", "pi-3", "pi-1"):
        tracer.performed(ask(device, 1), 101.0, 101.0)
    tracer.performed(CountEvent("pi-1", "reported"), 105.0, 105.0)
    tracer.performed(CountEvent("pi-2", "declined", "charging"), 102.0, 102.0)
    tracer.performed(ask("pi-1", 2), 106.0, 106.0)  # the next round opens before the record is saved
    tracer.performed(SaveRecord(record(1)), 107.0, 108.0)
    devices = {one.name: one for one in memory.spans() if one.name.startswith("device")}
    assert sorted(devices) == ["device pi-1", "device pi-2"]
    assert devices["device pi-1"].end_time - devices["device pi-1"].start_time == 4 * SECOND_NS
    assert devices["device pi-2"].attributes["fedpatch.reason"] == "charging"
    tracer.performed(SaveRecord(record(2)), 117.0, 118.0)
    assert [one.attributes["fedpatch.outcome"] for one in memory.spans() if one.name == "device pi-1"] == [
        "reported",
        "open",
    ]


def test_lost_device_that_comes_back_and_reports_has_reported(memory):
    tracer = tracer_of(memory)
    tracer.performed(ask("pi-1", 1), 101.0, 101.0)
    tracer.performed(CountEvent("pi-1", "lost"), 103.0, 103.0)
    tracer.performed(CountEvent("pi-1", "reported"), 106.0, 106.0)
    tracer.performed(SaveRecord(record(1)), 107.0, 108.0)
    [device] = [one for one in memory.spans() if one.name == "device pi-1"]
    assert device.attributes["fedpatch.outcome"] == "reported"
    assert device.end_time - device.start_time == 5 * SECOND_NS


def test_failed_round_is_an_error_with_its_reason(memory):
    tracer_of(memory).performed(SaveRecord(record(1, "quorum_missed")), 107.0, 108.0)
    whole = memory.spans()[-1]
    assert (whole.status.is_ok, whole.status.description) == (False, "quorum_missed")
    assert "fedpatch.user_accuracy" not in whole.attributes


@pytest.fixture
def receiver() -> Iterator[Any]:
    """An OTLP receiver over HTTP: its URL, its requests, and the status of its answers."""
    requests: list[tuple[str, bytes]] = []
    answer = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answer[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", requests=requests, answer=answer)
    server.shutdown()
    thread.join()
    server.server_close()


def test_receiver_gets_the_trace_with_the_fleet_before_the_run_ends(receiver, monkeypatch):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    lines: list[str] = []
    with traced(RunSettings(traces=receiver.url, fleet="kitchen"), SPEC, lines.append) as observer:
        assert observer is not None
        observer.performed(SaveRecord(record(1)), 107.0, 108.0)
    assert lines == []
    (path, body) = receiver.requests[0]
    assert path == "/v1/traces"
    (group,) = ExportTraceServiceRequest.FromString(body).resource_spans
    resource = {one.key: one.value.string_value for one in group.resource.attributes}
    assert (resource["service.name"], resource["fedpatch.fleet"]) == ("fedpatch-coordinator", "kitchen")
    assert {one.name for one in group.scope_spans[0].spans} >= {"round 1", "train"}


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Run an MLflow tracking server, which accepts traces at /v1/traces; yield its URL."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/runs.db"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            assert server.poll() is None
            threading.Event().wait(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def test_mlflow_has_the_spans_of_a_round(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="make extras")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-mlflow-experiment-id=0")
    lines: list[str] = []
    with mlflow_server(tmp_path) as url:
        with traced(RunSettings(traces=url, fleet="kitchen"), SPEC, lines.append) as observer:
            assert observer is not None
            observer.performed(SaveRecord(record(1)), 107.0, 108.0)
        assert lines == []
        (trace,) = mlflow.MlflowClient(tracking_uri=url).search_traces(locations=["0"])
        assert {one.name for one in trace.data.spans} >= {"round 1", "select", "train", "aggregate"}


def test_receiver_that_is_away_is_one_line_and_no_error(monkeypatch):
    lines: list[str] = []
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr("fedpatch.coordinator.observability.round_tracing.EXPORT_TIMEOUT_S", 0.5)
    with traced(RunSettings(traces=url), SPEC, lines.append) as observer:
        assert observer is not None
        for number in (1, 2):
            observer.performed(SaveRecord(record(number)), 107.0, 108.0)
    (line,) = lines
    assert line.startswith(f"traces: {url}/v1/traces does not take them (Failed to export spans batch")
    assert line.endswith("; the run goes on, and later rounds are tried")


def test_reason_of_a_receiver_that_refuses_is_in_the_line(receiver):
    receiver.answer[:] = [422]
    lines: list[str] = []
    with traced(RunSettings(traces=receiver.url), SPEC, lines.append) as observer:
        assert observer is not None
        observer.performed(SaveRecord(record(1)), 107.0, 108.0)
    assert len(lines) == 1 and "422" in lines[0]


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("http://localhost:4318", True),
        ("https://collector.local/v1/traces", True),
        ("http://collector.local:4318", False),
        ("collector:4318", False),
        ("http://[::1", False),
        ("http://localhost:port", False),
    ],
)
def test_url_of_traces_needs_tls_on_the_way_to_another_machine(url, fits):
    try:
        load(RunSettings, file=None, environ={}, flags={"traces": url})
    except ConfigError as error:
        assert not fits and "--traces" in str(error)
    else:
        assert fits


def test_endpoint_keeps_a_path_of_its_own():
    assert endpoint_of("http://localhost:5000/") == "http://localhost:5000/v1/traces"
    assert endpoint_of("http://localhost:5000/otlp/traces") == "http://localhost:5000/otlp/traces"


def test_missing_package_is_named_before_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match=r"pip install 'fedpatch\[otel\]'"):
        require_tracing(RunSettings(traces="http://localhost:4318"))
