"""The outcome of a run: which failures end it, which leave it to a resume, what is recorded."""

from __future__ import annotations

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.rounds.round_record import last_user_accuracy
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.coordinator.runtime.connected_run import ConnectedRun
from fedpatch.coordinator.runtime.play_rounds import play_rounds
from fedpatch.coordinator.runtime.run_opening import RunOpening, read_opening
from fedpatch.coordinator.runtime.run_places import watch_state_directory
from fedpatch.coordinator.storage.checkpoint import export_model, load_checkpoint
from fedpatch.coordinator.storage.update_files import drop_round, kept_rounds
from fedpatch.shared.errors import (
    FedpatchError,
    LeadershipLost,
    StateDirectoryLost,
    StateError,
    StateUnreadable,
    StoreUnavailable,
)


def play_to_the_end(run: ConnectedRun) -> RunSummary:
    """Run the rounds and record the outcome. The summary is read back from disk, as a resume would find it."""
    spec, registry, connection, say = run.spec, run.registry, run.connection, run.view.say
    stopped, model = Stopped.FAILED, ""
    guard = watch_state_directory(run.settings, spec.run, registry)
    blobs = run.blobs(guard)
    opening: RunOpening | None = None
    try:
        opening = read_opening(run, guard)
        stopped = play_rounds(run, opening)
    except (StateUnreadable, StateDirectoryLost):
        raise  # the run stays unfinished, and the same command goes on with it
    except StoreUnavailable as error:
        if opening is None:
            raise
        say(f"the run cannot go on: {error}")
        if connection.event_queue.ending.is_set():
            stopped = Stopped.INTERRUPTED
    except LeadershipLost:
        raise
    except (FedpatchError, OSError) as error:
        say(f"the run cannot go on: {error}")
        model = _export(run, blobs)
    else:
        model = _export(run, blobs)
    connection.must_lead()
    records = registry.rounds.records(spec.run)
    user_accuracy = last_user_accuracy(records)
    try:
        _drop_unused_updates(blobs, stopped)
        registry.finish_run(spec.run, stopped_because=stopped, user_accuracy=user_accuracy, model=model)
    except StateDirectoryLost:
        raise
    except StateError as error:  # the run stays unfinished, as after a power cut
        say(str(error))
    return RunSummary(spec.run, stopped.value, user_accuracy, model, records, spec.private)


def _drop_unused_updates(blobs: BlobStore, stopped: Stopped) -> None:
    """Delete updates that no round used: a coordinator that was killed as it saved the last round has left them."""
    if stopped not in (Stopped.INTERRUPTED, Stopped.FAILED):
        for number in kept_rounds(blobs):
            drop_round(blobs, number)


def _export(run: ConnectedRun, blobs: BlobStore) -> str:
    """Write the global model for other programs and return its path or URL; "" if this fails; the run does not fail."""
    try:
        tensors = load_checkpoint(blobs)[0].tensors
        return export_model(blobs, {name: tensors[name] for name in run.prepared.public.names})
    except (FedpatchError, OSError) as error:
        run.view.say(str(error))
        return ""
