"""One evaluate round of a run that is not running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.coordinator.runtime.changeable_settings import former_encoding
from fedpatch.coordinator.runtime.play_rounds import play_rounds
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.runtime.resume_run import connected_again, settings_of
from fedpatch.coordinator.runtime.run_opening import read_opening
from fedpatch.coordinator.runtime.run_places import require_free, watch_state_directory
from fedpatch.coordinator.setting_conflicts.conflict import conflicts_of
from fedpatch.coordinator.setting_conflicts.evaluate_rounds import EVALUATE_ROUNDS
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import FedpatchError, UsageError


def evaluate_run(  # noqa: PLR0913 - one keyword per choice of the user
    state_dir: Path,
    name: str,
    view: View,
    *,
    broker: str | None = None,
    password: str | None = None,
    password_file: Path | None = None,
    participation: float = 1.0,
    insecure: bool = False,
    ports: Ports = REAL,
) -> RoundRecord:
    """Execute one evaluate round of a run that is not running: devices measure its model with their patches.

    The status of the run does not change; a round that is interrupted leaves no record.

    Args:
        name: Name of the run.
        password: The password for the broker; it replaces a file that the run was started with.
        participation: Share of the fleet that is asked, above 0 and at most 1.
        insecure: Accept a broker without TLS.

    Returns:
        The record of the round.

    Raises:
        UsageError: The run hides the figures of single devices, has an open round, or another coordinator is running; or
            `participation` is not a share.
        FedpatchError: No device came.
        KeyboardInterrupt: The operator ended the round.
        SchemaMismatch, BrokerError, StateError: As `resume_run` does.
    """
    if not 0.0 < participation <= 1.0:
        raise UsageError(f"participation {participation:g} is no share; it must be above 0 and at most 1")
    state_dir = state_dir.absolute()
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = registry.run(name)
        # An evaluation takes no updates, so another encoding changes no result.
        encoding = RunSettings.encoding if former_encoding(run) else None
        changes = {"broker": broker, "insecure": insecure or None, "encoding": encoding}
        settings = settings_of(run, state_dir, changes, password, password_file)
        if hidden := next(iter(conflicts_of(replace(settings, late="refuse"), EVALUATE_ROUNDS)), None):
            raise UsageError(
                f"run {run.id} has {hidden[2]} = {getattr(settings, hidden[2])}; an evaluate round {hidden[1]}"
            )
        require_free(state_dir, settings.fleet)
        _require_no_open_work(registry, run, ports)
        settings = replace(settings, tracker=(), traces=None, metrics=None)
        with connected_again(registry, run, settings, view, ports) as connected:
            view.say(f"run {run.id}: measuring without training, epoch {connected.spec.epoch}")
            spec = replace(
                connected.spec, evaluates_only=True, evaluate_participation=participation, carry=None, time_limit_s=None
            )
            measuring = replace(connected, spec=spec)
            guard = watch_state_directory(settings, spec.run, registry)
            stopped = play_rounds(measuring, read_opening(measuring, guard))
        last = registry.rounds.records(run.id)[-1:]
    if stopped is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if stopped is Stopped.FAILED or not last:
        raise FedpatchError(f"run {run.id} was not evaluated: no device came")
    return last[0]


def _require_no_open_work(registry: Registry, run: RunInfo, ports: Ports) -> None:
    """Raise UsageError for a run with an open round, which an evaluation would continue, or with carried work."""
    finished = run.status == "finished"
    carried = {} if finished else registry.rounds.carried(run.id)
    if carried or registry.rounds.unfinished(run.id, ports.boot_time()) is not None:
        # A run that was resumed with fewer rounds, or a lower target, is finished although a round is open.
        more = " with more --rounds or another --target-ua" if finished else ""
        raise UsageError(f"run {run.id} has open work at its devices; `fedpatch resume {run.id}`{more} first")
