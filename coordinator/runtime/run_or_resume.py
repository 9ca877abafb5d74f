"""The choice of `fedpatch run`: resume the fleet's last run, start a new one, or do nothing."""

from __future__ import annotations

from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.rounds.run_summary import RunSummary, summary_of
from fedpatch.coordinator.runtime.changeable_settings import has_same_terms
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.runtime.resume_run import resume_registered
from fedpatch.coordinator.runtime.run_places import require_free
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.runtime.wait_for_lead import leading
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.database.opening import choose_database, exists
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import refuse_run_of_hub
from fedpatch.shared.errors import LeadershipGivenUp, UsageError


def run_or_resume(
    settings: RunSettings, view: View, *, new: bool = False, unless_done: bool = False, ports: Ports = REAL
) -> RunSummary:
    """Resume the fleet's last run if it is unfinished and has these settings; else start a new one.

    So a service that is restarted continues its run. With standbys it first waits until it leads the fleet, and waits again
    after it has given up the lead.

    Args:
        new: Start a new run in any case.
        unless_done: If the last run has these settings and is finished, return its summary and connect to no broker.

    Returns:
        The summary of the run at its end.

    Raises:
        UsageError: Settings do not fit together, or another coordinator is running.
        BrokerError: The broker does not answer.
        StateError: The state directory cannot be used.
    """
    if new and unless_done:
        raise UsageError("--new always starts a run, --unless-done does not: use one of them")
    choose_database(settings.state_dir.absolute() / REGISTRY_FILE, settings.state)
    if not settings.standby or ports.leadership is not None:
        return _run_or_resume_now(settings, view, ports, new=new, unless_done=unless_done)
    has_waited = False
    while True:
        try:
            with leading(settings, view, ports, again=has_waited) as (leader_ports, waited):
                has_waited = has_waited or waited
                # A run that the previous leader has completed meanwhile is not started again.
                return _run_or_resume_now(
                    settings,
                    view,
                    leader_ports,
                    new=new and not has_waited,
                    unless_done=unless_done or has_waited,
                )
        except LeadershipGivenUp as error:
            view.say(str(error))
            has_waited = True


def _run_or_resume_now(settings: RunSettings, view: View, ports: Ports, *, new: bool, unless_done: bool) -> RunSummary:
    registry_file = settings.state_dir.absolute() / REGISTRY_FILE
    if not new and exists(registry_file):
        with Registry(registry_file, patient=ports.leadership is not None) as registry:
            last = registry.newest(settings.fleet)
            if last is not None:
                refuse_run_of_hub(last, settings.state_dir)
            done = last is not None and last.status == "finished"
            in_vain = done and last is not None and summary_of(last, registry.rounds.records(last.id)).in_vain
            if last is not None and has_same_terms(last, settings):
                if not done:
                    require_free(settings.state_dir.absolute(), settings.fleet)
                    view.say(f"run {last.id} was not finished; going on with it (--new begins another)")
                    return resume_registered(registry, last, settings, view, ports)
                if unless_done and not in_vain:
                    why = f"{last.stopped_because}; other settings, or --new, begin another"
                    view.say(f"run {last.id} with these settings has come to its end: {why}")
                    return summary_of(last, registry.rounds.records(last.id))
        if last is not None and not done:
            require_free(settings.state_dir.absolute(), settings.fleet)
            other = f"`fedpatch resume {last.id}` goes on with it"
            view.say(f"run {last.id} was not finished and has other settings, so a new one begins; {other}")
    return start_run(settings, view, ports)
