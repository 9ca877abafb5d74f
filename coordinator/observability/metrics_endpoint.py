"""Serves the metrics of a run at http://HOST:PORT/metrics while it goes on; a run never fails for want of them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from coordinator.engine import Engine
from coordinator.identity.expiry import Ask, as_number, of_files
from coordinator.observing import Observer, Unobserved
from coordinator.settings import RunSettings
from coordinator.snapshot import View
from shared.listening import Address, parse_address

if TYPE_CHECKING:
    from coordinator.metrics import Metrics

NO_OTHERS: Mapping[str, Ask] = MappingProxyType({})


@contextmanager
def observed(
    settings: RunSettings, engine: Engine, directory: Path, view: View, certificates: Mapping[str, Ask] = NO_OTHERS
) -> Iterator[Observer]:
    """The observer of a run whose files are in `directory`: it counts along where the settings want metrics.

    `certificates` are others than those of the settings, by name: when they expire.
    Where they cannot be served, `view` says why, once, and nobody counts.
    """
    if settings.metrics is None:
        yield Unobserved()
        return
    address = parse_address(settings.metrics)
    try:
        from coordinator.metering import Meter
        from coordinator.metrics import Metrics
    except ModuleNotFoundError as error:
        view.say(f"no metrics: {error.name} is not installed; pip install 'fedpatch[coordinator]', or --metrics none")
        yield Unobserved()
        return
    metrics = Metrics()
    meter = Meter(metrics, engine, directory, strategy=settings.strategy, max_devices=settings.metrics_max_devices)
    metrics.traffic.free.set_function(partial(_of_disk, directory, "free"))
    metrics.traffic.size.set_function(partial(_of_disk, directory, "total"))
    for name, ask in {**of_files(settings), **certificates}.items():
        metrics.traffic.expiry.labels(name).set_function(partial(as_number, ask))
    try:
        stop, url = serve(metrics, address)
    except (OSError, UnicodeError) as error:  # the latter of a name that cannot be looked up
        why = getattr(error, "strerror", None) or error
        view.say(f"no metrics: cannot listen on {address}: {why}; --metrics names another HOST:PORT")
        yield Unobserved()
        return
    view.say(f"metrics: {url}")
    try:
        yield meter
    finally:
        stop()


def serve(metrics: Metrics, address: Address) -> tuple[Callable[[], None], str]:
    """Serves in threads of its own; returns what ends that, and the URL. OSError where the address cannot be had."""
    from prometheus_client import start_http_server

    server, thread = start_http_server(address.port, address.host, metrics.registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop, f"http://{Address(address.host, server.server_port)}/metrics"


def _of_disk(directory: Path, what: str) -> float:
    """Asked at each scrape: the coordinator's thread does not wait for a disk that is slow to answer."""
    try:
        return float(getattr(shutil.disk_usage(directory), what))
    except OSError:
        return math.nan
