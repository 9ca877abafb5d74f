"""OpenTelemetry traces: one trace for each round, with spans for its phases and a bounded number of devices.

A trace is made from noted times when the record of its round is saved, so a round costs only a few dictionary entries. A thread
of the SDK exports the trace. Traces need the extra `otel`; its packages are imported only with the setting `traces`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.observability.round_tracking import tracked_round
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, SaveJournal, SaveRecord, SendMessage
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared import __version__
from fedpatch.shared.app.plugins import import_optional
from fedpatch.shared.wire.messages import WorkRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

EXPORT_TIMEOUT_S = 5.0
_MAX_REASON = 200
_ENDS = frozenset({"reported", "declined", "failed", "lost", "refused", "late"})
_REMEDY = "pip install 'fedpatch[otel]', or leave --traces out"


@dataclass
class _DeviceTimes:
    """When a device was asked and when its part ended, in seconds of the coordinator's clock."""

    asked_at: float
    ended_at: float | None = None
    outcome: str = "open"
    reason: str = ""


class RoundTracer(NullObserver):
    """The observer that makes the traces.

    Args:
        tracer: Makes spans.
        spec: The run.
        max_devices: Number of devices with a span of their own in a round: the devices asked first.
        unix_ns: Returns nanoseconds of the wall clock.
    """

    def __init__(
        self, tracer: Tracer, spec: RunSpec, max_devices: int, unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._tracer, self._spec, self._max_devices, self._unix_ns = tracer, spec, max_devices, unix_ns
        self._devices: dict[int, dict[str, _DeviceTimes]] = {}

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:  # type: ignore[override]
        """Note the times of devices; make the trace of a round whose record is saved."""
        match effect:
            case SaveJournal():
                # The next round may open before the record of the last one is saved.
                self._devices[effect.journal.round] = {}
            case SendMessage(device=device, envelope=envelope) if isinstance(envelope.body, WorkRequest):
                noted = self._devices.setdefault(envelope.round, {})
                if device not in noted and len(noted) < self._max_devices:
                    noted[device] = _DeviceTimes(began_at)
            case CountEvent(device=device, what=what) if what in _ENDS:
                self._end(device, what, str(effect.reason), ended_at)
            case SaveRecord():
                self._trace(effect.record, ended_at)

    def _end(self, device: str, outcome: str, reason: str, ended_at: float) -> None:
        """Note the last outcome: a lost device may come back and report, and a late answer may be of an earlier round."""
        parts = [noted[device] for noted in self._devices.values() if device in noted]
        part = next((one for one in parts if one.ended_at is None), parts[-1] if parts else None)
        if part is not None:
            part.ended_at, part.outcome, part.reason = ended_at, outcome, reason

    def _trace(self, record: RoundRecord, ended_at: float) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import StatusCode, set_span_in_context

        now_ns = self._unix_ns()

        def unix(moment: float) -> int:
            return now_ns - round((ended_at - moment) * 1e9)

        began_at = ended_at - record.seconds
        figures: Mapping[str, Any] = tracked_round(record).figures
        attributes: dict[str, Any] = {
            "fedpatch.run": self._spec.run,
            "fedpatch.round": record.round,
            "fedpatch.task": self._spec.task,
        }
        attributes |= {f"fedpatch.{name.replace('/', '.')}": value for name, value in figures.items()}
        whole = self._tracer.start_span(
            f"round {record.round}", Context(), attributes=attributes, start_time=unix(began_at)
        )
        if record.failure:
            whole.set_status(StatusCode.ERROR, record.failure)
        within = set_span_in_context(whole)
        begin = began_at
        for phase, spent_s in asdict(record.phase_seconds).items():
            span = self._tracer.start_span(phase, within, start_time=unix(begin))
            begin += spent_s
            span.end(unix(begin))
        for device, times in self._devices.pop(record.round, {}).items():
            words = {"fedpatch.device": device, "fedpatch.outcome": times.outcome, "fedpatch.reason": times.reason}
            span = self._tracer.start_span(
                f"device {device}", within, attributes=words, start_time=unix(times.asked_at)
            )
            span.end(unix(ended_at if times.ended_at is None else times.ended_at))
        whole.end(now_ns)
        for number in [number for number in self._devices if number < record.round]:
            del self._devices[number]


def require_tracing(settings: RunSettings) -> None:
    """Raise UsageError if traces are wanted and the packages of the extra `otel` are missing."""
    if settings.traces is not None:
        for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
            import_optional(module, "--traces needs OpenTelemetry", _REMEDY)


@contextmanager
def traced(settings: RunSettings, spec: RunSpec, say: Callable[[str], None]) -> Iterator[Observer | None]:
    """Yield the observer that traces the rounds of a run; None where `settings.traces` is not set.

    Args:
        settings: `traces` is the endpoint, `metrics_max_devices` the largest number of devices in a trace.
        say: Shows a line if the endpoint does not accept traces.
    """
    if settings.traces is None:
        yield None
        return
    require_tracing(settings)
    provider = _provider(settings, say)
    try:
        yield RoundTracer(provider.get_tracer("fedpatch", __version__), spec, settings.metrics_max_devices)
    finally:
        provider.shutdown()


def endpoint_of(url: str) -> str:
    """Return the address that traces are sent to: `/v1/traces` at the URL, unless it has a path of its own."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1/traces"


class _LastMessage(logging.Handler):
    """Keeps the last message of the SDK, which has the reason of a failure."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of a message."""
        self.text = record.getMessage().partition("\n")[0][:_MAX_REASON]


def _provider(settings: RunSettings, say: Callable[[str], None]) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    assert settings.traces is not None
    endpoint = endpoint_of(settings.traces)

    class Exporter(SpanExporter):
        """Reports once that the endpoint does not accept traces; the SDK would log each failure."""

        def __init__(self) -> None:
            self._reason = _LastMessage()
            logger = logging.getLogger("opentelemetry.exporter.otlp")
            logger.propagate = False
            logger.handlers = [self._reason]
            self._inner = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
            self._warned = False

        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            """Export spans."""
            result = self._inner.export(spans)
            if result is not SpanExportResult.SUCCESS and not self._warned:
                self._warned = True
                why = f" ({self._reason.text})" if self._reason.text else ""
                say(f"traces: {endpoint} does not take them{why}; the run goes on, and later rounds are tried")
            return result

        def shutdown(self) -> None:
            """Close the connection."""
            self._inner.shutdown()  # type: ignore[no-untyped-call]

    resource = Resource.create(
        {"service.name": "fedpatch-coordinator", "service.version": __version__, "fedpatch.fleet": settings.fleet}
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Exporter()))
    return provider
