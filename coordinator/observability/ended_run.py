"""The last figures of an ended run as metrics, made from the registry, so that they outlive the coordinator."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedpatch.coordinator.rounds.round_record import RoundRecord, training_rounds
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.shared.config.listen_address import Address, parse_address
from fedpatch.shared.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def ended_metrics(info: RunInfo, records: Sequence[RoundRecord]) -> CollectorRegistry:
    """Return the metrics of the run and its rounds, with `fedpatch_run_ended`.

    There are no metrics of the fleet, the traffic or the host: their last values would look like present ones.

    Args:
        info: The run, which has ended.
        records: Its rounds, in order.

    Returns:
        The metrics, with the names that the run had.

    Raises:
        UsageError: prometheus-client is not installed, or the run has not ended.
    """
    try:
        from prometheus_client import CollectorRegistry, disable_created_metrics
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'fedpatch[coordinator]'") from error
    from fedpatch.coordinator.observability.metric_definitions import RoundGauges
    from fedpatch.coordinator.observability.round_metrics import set_from_records

    if info.status != "finished" or info.stopped_because is None:
        raise UsageError(f"run {info.id} is {info.status}: only a finished run has last metrics; see `fedpatch show`")
    disable_created_metrics()  # type: ignore[no-untyped-call]  # as of the running coordinator
    registry = CollectorRegistry()
    metrics = RoundGauges(registry)
    set_from_records(metrics, info, records)
    metrics.number.set(records[-1].round if records else 0)
    metrics.planned.set(float(info.settings.get("rounds") or training_rounds(records)))
    metrics.ended.labels(info.stopped_because).set(1)
    return registry


def keeper(listen: str | None, run: str, state_dir: Path) -> list[str]:
    """Return the command of the small process that serves the last metrics of a run; empty if it could not serve them.

    Args:
        listen: The address of the run's metrics; None for none.
    """
    if listen is None or importlib.util.find_spec("prometheus_client") is None:
        return []
    if not _is_free(parse_address(listen)):
        return []
    given = ["--serve", listen, "--state-dir", str(state_dir.absolute())]
    return [sys.executable, "-P", "-m", "fedpatch", "metrics", run, *given]


def become(command: Sequence[str]) -> None:
    """Replace this process: the new one has neither torch nor the model in memory, and keeps the process id."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os.execv(command[0], list(command))  # without a shell, and with our own interpreter  # nosec B606


def _is_free(address: Address) -> bool:
    try:
        with socket.create_server(
            (address.host, address.port), family=socket.AF_INET6 if ":" in address.host else socket.AF_INET
        ):
            return True
    except (OSError, UnicodeError):
        return False
