"""Serves the metrics of a run at http://HOST:PORT/metrics. A run continues without metrics if they cannot be served.

Expiry times of certificates are read at each scrape, so that a renewal is visible at once.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.pki.issued_certificates import DEVICE
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.store_waits import KINDS, StoreWaits
from fedpatch.shared.config.listen_address import Address, parse_address
from fedpatch.shared.mqtt.tls_errors import expiry_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Ask = Callable[[], float | None]


def of_files(settings: RunSettings) -> dict[str, Ask]:
    """Expiry times of the certificates that exist: `ca`, the first in ca_file, and `coordinator`, its own."""
    files = {"ca": settings.ca_file, "coordinator": settings.cert_file}
    return {name: partial(expiry_of, path) for name, path in files.items() if expiry_of(path) is not None}


def of_others(revocations: Revocations, broker_ends: Ask) -> dict[str, Ask]:
    """Expiry times of other certificates: `device`, the first to expire, and `broker`, the one in the last handshake.

    The threads of the endpoint call these functions. They read one reference and change nothing.
    """
    asks: dict[str, Ask] = {}
    if revocations.index.entries:  # there is a CA, and the first device may be enrolled during the run
        asks["device"] = lambda: revocations.index.first_expiry(DEVICE)
    if broker_ends() is not None:
        asks["broker"] = broker_ends
    return asks


def as_number(ask: Ask) -> float:
    """Convert to the value of a gauge: None becomes NaN."""
    found = ask()
    return math.nan if found is None else float(found)


NO_OTHERS: Mapping[str, Ask] = MappingProxyType({})


@contextmanager
def observed(
    settings: RunSettings,
    engine: Engine,
    directory: Path,
    view: View,
    certificates: Mapping[str, Ask] = NO_OTHERS,
    waits: StoreWaits | None = None,
) -> Iterator[Observer]:
    """Yield the observer of a run, and serve its metrics where the settings ask for it.

    Args:
        settings: `metrics` is the address, `metrics_max_devices` the largest number of devices with own series.
        directory: Directory of the run's files.
        view: Prints the reason if the metrics cannot be served.
        certificates: Expiry times of further certificates by name, read at each scrape.
        waits: The requests to stores that wait.

    Yields:
        The observer; a NullObserver where nothing is served.
    """
    if settings.metrics is None:
        yield NullObserver()
        return
    address = parse_address(settings.metrics)
    try:
        from fedpatch.coordinator.observability.metric_definitions import Metrics
        from fedpatch.coordinator.observability.run_metrics import RunMetrics
    except ModuleNotFoundError as error:
        view.say(f"no metrics: {error.name} is not installed; pip install 'fedpatch[coordinator]', or --metrics none")
        yield NullObserver()
        return
    metrics = Metrics()
    meter = RunMetrics(metrics, engine, directory, strategy=settings.strategy, max_devices=settings.metrics_max_devices)
    metrics.traffic.leader.labels(settings.fleet).set(1)
    metrics.traffic.leader_epoch.labels(settings.fleet).set(engine.spec.leader_epoch or 0)
    known = waits or StoreWaits()
    for kind in KINDS:
        metrics.traffic.silent.labels(kind).set_function(partial(known.silent_s, kind))
    metrics.traffic.free.set_function(partial(_of_disk, directory, "free"))
    metrics.traffic.size.set_function(partial(_of_disk, directory, "total"))
    for name, ask in {**of_files(settings), **certificates}.items():
        metrics.traffic.expiry.labels(name).set_function(partial(as_number, ask))
    try:
        stop, url = serve(metrics.registry, address)
    except (OSError, UnicodeError) as error:  # UnicodeError: of a name that cannot be looked up
        why = getattr(error, "strerror", None) or error
        view.say(f"no metrics: cannot listen on {address}: {why}; --metrics names another HOST:PORT")
        yield NullObserver()
        return
    view.say(f"metrics: {url}")
    try:
        yield meter
    finally:
        stop()


@contextmanager
def waiting_as_standby(settings: RunSettings, view: View) -> Iterator[None]:
    """While a standby waits, serve its metric, `fedpatch_leader` 0, if the address can be used.

    Args:
        settings: `metrics` is the address.
        view: Prints the address.
    """
    with ExitStack() as stack:
        with suppress(ModuleNotFoundError, OSError, UnicodeError):
            if settings.metrics is not None:
                from prometheus_client import CollectorRegistry

                from fedpatch.coordinator.observability.metric_definitions import leader_gauge

                registry = CollectorRegistry()
                leader_gauge(registry).labels(settings.fleet).set(0)
                stop, url = serve(registry, parse_address(settings.metrics))
                stack.callback(stop)
                view.say(f"metrics: {url}")
        yield


def serve(registry: CollectorRegistry, address: Address) -> tuple[Callable[[], None], str]:
    """Serve in threads of their own; return a function that stops them, and the URL. OSError where the address is taken."""
    from prometheus_client import start_http_server

    server, thread = start_http_server(address.port, address.host, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop, f"http://{Address(address.host, server.server_port)}/metrics"


def _of_disk(directory: Path, what: str) -> float:
    """Free or total bytes of the disk, read at each scrape so that a slow disk does not delay the coordinator's thread."""
    try:
        return float(getattr(shutil.disk_usage(directory), what))
    except OSError:
        return math.nan
