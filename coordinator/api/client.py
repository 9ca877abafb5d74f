"""A client of a state directory: its runs and devices as values, and the commands that change them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from fedpatch.coordinator.pki.issued_certificates import mark_revoked
from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo, RunSummary, summary_of
from fedpatch.coordinator.settings import CA_DIRECTORY
from fedpatch.coordinator.storage.database.opening import must_exist
from fedpatch.coordinator.storage.run_registry import LAST, REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import as_it_is, find, find_to_resume
from fedpatch.shared.errors import UsageError
from fedpatch.shared.scripting.frames import Rows

if TYPE_CHECKING:
    from fedpatch.coordinator.api.events import RunEvent
    from fedpatch.coordinator.api.running import Play
    from fedpatch.coordinator.guard.device_holds import HoldChange
    from fedpatch.coordinator.operations.export import GlobalExport
    from fedpatch.coordinator.storage.registry_rebuild import Rebuilt
    from fedpatch.shared.scripting.jobs import BackgroundJob


class ResumeTerms(TypedDict, total=False):
    """The settings of a run that a resume may change.

    Attributes:
        broker: URL of the broker.
        password: Password for the broker; it replaces the file that the run was started with.
        password_file: File with the password.
        rounds: Total number of rounds.
        target_ua: User accuracy at which the run ends.
        metrics: Address of the metrics endpoint.
        encoding: Encoding from the next round on.
        insecure: Allow mqtt:// to another machine, without TLS.
    """

    broker: str | None
    password: str | None
    password_file: str | Path | None
    rounds: int | None
    target_ua: float | None
    metrics: str | None
    encoding: str | None
    insecure: bool


class Client:
    """Reads and changes the state directory of a coordinator, also while the coordinator runs.

    A run is named by its id, the beginning of its id, or "last".

    Args:
        state_dir: The state directory, or the directory of a demo. None: ./fedpatch-state, else a demo's directory in the
            current directory.

    Example:
        >>> from fedpatch import Client
        >>> client = Client("fedpatch-state")
        >>> client.state_dir().name
        'fedpatch-state'
        >>> client.show("last").user_accuracy  # doctest: +SKIP
        0.97
        >>> client.devices().to_frame()[["online", "reported"]]  # doctest: +SKIP

    Raises:
        UsageError: There is no such run or device, or no registry.
        StateError: The registry is damaged.
    """

    def __init__(self, state_dir: str | Path | None = None) -> None:
        self._named = None if state_dir is None else Path(state_dir)

    def state_dir(self, run: str | None = None) -> Path:
        """Return the state directory, or the one that has the run."""
        return find(self._named, run)

    def runs(self) -> Rows[RunInfo]:
        """Return all runs, the newest first."""
        with Registry(self.state_dir() / REGISTRY_FILE, readonly=True) as registry:
            return Rows(as_it_is(run, self.state_dir(), registry) for run in registry.runs())

    def run_info(self, run: str = LAST) -> RunInfo:
        """Return a run with its settings. UsageError for an unknown run."""
        with Registry(self.state_dir(run) / REGISTRY_FILE, readonly=True) as registry:
            return as_it_is(registry.run(run), self.state_dir(run), registry)

    def show(self, run: str = LAST) -> RunSummary:
        """Return a run with the records of its rounds; `stopped_because` is "running" while the run continues."""
        with Registry(self.state_dir(run) / REGISTRY_FILE, readonly=True) as registry:
            info = as_it_is(registry.run(run), self.state_dir(run), registry)
            return summary_of(info, registry.records_as_written(info.id))

    def devices(self, fleet: str | None = None) -> Rows[DeviceInfo]:
        """Return all devices ever seen, or those of a fleet; a device that the CA has revoked is not online."""
        with Registry(self.state_dir() / REGISTRY_FILE, readonly=True) as registry:
            known = [one for one in registry.devices() if fleet in (None, one.fleet)]
        return Rows(mark_revoked(known, self.state_dir() / CA_DIRECTORY))

    def quarantine(self, device: str, reason: str, fleet: str | None = None) -> HoldChange:
        """Within seconds, reject a device's messages and do not ask it again.

        Args:
            reason: The reason, which is shown with the device.
            fleet: Its fleet, where several have a device of this id.
        """
        return self._hold(device, QUARANTINED, reason, fleet)

    def drain(self, device: str, reason: str = "maintenance", fleet: str | None = None) -> HoldChange:
        """Do not ask a device again; its current work still counts.

        Args:
            reason: The reason, which is shown with the device.
            fleet: Its fleet, where several have a device of this id.
        """
        return self._hold(device, DRAINED, reason, fleet)

    def release(self, device: str, fleet: str | None = None) -> HoldChange:
        """Release a device from quarantine and reset its offences."""
        return self._lift(device, QUARANTINED, fleet)

    def resume_device(self, device: str, fleet: str | None = None) -> HoldChange:
        """End the maintenance of a drained device."""
        return self._lift(device, DRAINED, fleet)

    def stop(self, run: str = LAST) -> str:
        """Ask the coordinator of a run to stop after its open round; return the result in words."""
        from fedpatch.coordinator.guard.stop_request import request_stop

        return request_stop(self.state_dir(run), run)

    def report(
        self,
        *runs: str,
        out: str | Path | None = None,
        csv: str | Path | None = None,
        png: str | Path | None = None,
    ) -> dict[str, str | None]:
        """Write runs as one HTML page.

        Args:
            runs: The runs; none for the last one.
            out: File of the page; None: RUN.html in the current directory.
            csv: File for all rounds; None for none.
            png: File for the curves; None for none.

        Returns:
            The paths by "report", "csv" and "png".
        """
        try:
            from fedpatch.coordinator.report.load import Wanted, read_runs, write_report
        except ModuleNotFoundError as error:
            raise UsageError(
                f"a report needs the package {error.name}, which is not installed; pip install 'fedpatch[coordinator]'"
            ) from error
        wanted = Wanted(*(None if path is None else Path(path) for path in (out, csv, png)))
        wanted.check()
        return write_report(read_runs(self._named, runs or (LAST,)), wanted)

    def export(self, run: str = LAST, out: str | Path | None = None, round: int | None = None) -> GlobalExport:
        """Write a run's global model as ONNX, with its metadata beside it.

        Args:
            out: File to write; None: model.onnx beside the run's checkpoints.
            round: Number of aggregated rounds: all, or one less; None: all.

        Returns:
            Paths and metadata; `is_earlier` where the newest checkpoint is damaged.
        """
        from fedpatch.coordinator.operations.export import export_global_model

        return export_global_model(self.state_dir(run), run, None if out is None else Path(out), round)

    def resume(self, run: str = LAST, *, progress: bool | None = None, **changes: Unpack[ResumeTerms]) -> RunSummary:
        """Resume a run with its settings, and return when it has ended.

        Args:
            progress: As of `fedpatch.run`.
            changes: New values of `broker`, `password`, `password_file`, `rounds`, `target_ua`, `metrics`, `encoding` or
                `insecure`; None keeps the run's value.

        Raises:
            UsageError: A keyword is unknown, there is no such run, or another coordinator is running.
        """
        from fedpatch.coordinator.api.running import play_here

        return play_here(self._resuming(run, changes), progress)

    def start_resume(self, run: str = LAST, **changes: Unpack[ResumeTerms]) -> BackgroundJob[RunEvent, RunSummary]:
        """Resume a run in a thread of its own, as `fedpatch.start_run` does.

        Args:
            changes: As of `resume`.
        """
        from fedpatch.coordinator.api.running import play_in_thread

        return play_in_thread(self._resuming(run, changes), f"run {run}")

    def evaluate(
        self,
        run: str = LAST,
        *,
        participation: float = 1.0,
        broker: str | None = None,
        password: str | None = None,
        password_file: str | Path | None = None,
        insecure: bool = False,
        progress: bool | None = None,
    ) -> RoundRecord:
        """Measure a run's model on its devices without training, as `fedpatch evaluate` does; add the round to the run.

        Args:
            run: The run, which must not be running.
            participation: Share of the fleet that is asked, above 0 and at most 1.
            broker: URL of the broker; None: the run's.
            insecure: Allow mqtt:// to another machine, without TLS.
            progress: As of `fedpatch.run`.

        Returns:
            The record of the round: `measured` devices, `user_accuracy`, `user_accuracy_p10`, `user_accuracy_min`, and
            `user_accuracies` by device. `measured` is 0 where no device answered.

        Raises:
            UsageError: The run hides the figures of single devices, has an open round, or another coordinator is running.
            FedpatchError: No device came online.
            BrokerError: The broker does not answer.
            KeyboardInterrupt: The round was interrupted; nothing of it is stored.

        Example:
            >>> from fedpatch import Client
            >>> record = Client("fedpatch-state").evaluate("last", participation=0.5)  # doctest: +SKIP
            >>> record.user_accuracy, record.user_accuracy_p10  # doctest: +SKIP
            (0.97, 0.93)
        """
        from fedpatch.coordinator.api.running import play_here
        from fedpatch.coordinator.runtime.evaluate_run import evaluate_run

        found = find_to_resume(self._named, run)
        must_exist(found / REGISTRY_FILE)  # raises before a registry is created
        terms: dict[str, Any] = {
            "broker": broker,
            "password": password,
            "participation": participation,
            "insecure": insecure,
        }
        file = None if password_file is None else Path(password_file)
        return play_here(
            lambda view, ports: evaluate_run(found, run, view, password_file=file, ports=ports, **terms), progress
        )

    def rebuild(self) -> Rebuilt:
        """Replace a damaged or lost registry by a new one, made from the runs' files."""
        from fedpatch.coordinator.storage.registry_rebuild import rebuild_registry

        return rebuild_registry(self.state_dir() / REGISTRY_FILE)

    def _resuming(self, run: str, changes: ResumeTerms) -> Play:
        from fedpatch.coordinator.runtime.resume_run import resume_run

        known = ResumeTerms.__annotations__
        if unknown := next((name for name in changes if name not in known), None):
            raise UsageError(f"a resume cannot change {unknown!r}; it can change {', '.join(known)}")
        terms: dict[str, Any] = {**changes}
        if (file := changes.get("password_file")) is not None:
            terms["password_file"] = Path(file)
        found = find_to_resume(self._named, run)
        must_exist(found / REGISTRY_FILE)  # raises before a registry is created
        return lambda view, ports: resume_run(found, run, view, ports=ports, **terms)

    def _hold(self, device: str, kind: str, reason: str, fleet: str | None) -> HoldChange:
        from fedpatch.coordinator.guard.device_holds import hold

        return hold(self.state_dir(), device, kind, reason, fleet)

    def _lift(self, device: str, kind: str, fleet: str | None) -> HoldChange:
        from fedpatch.coordinator.guard.device_holds import lift

        return lift(self.state_dir(), device, kind, fleet)
