"""The state with which a run's first round begins or goes on, read from disk and store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.rounds.round_journal import CommittedUpdate, RoundStart
from fedpatch.coordinator.runtime.connected_run import ConnectedRun
from fedpatch.coordinator.runtime.resumed_rounds import rest_of_pause, resume_round, waiting_updates
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.shared.app.formatting import duration


@dataclass(frozen=True)
class RunOpening:
    """The state of a run after its last completed round.

    Attributes:
        guard: Watches the state directory.
        blobs: The run's store, behind that guard.
        state: The server's state.
        unfinished: The round that was open.
        waiting: Committed updates that wait for the next version, by device.
        rest_s: Seconds until the next round may begin.
    """

    guard: DirectoryGuard
    blobs: BlobStore
    state: ServerState
    unfinished: RoundStart | None
    waiting: Mapping[str, CommittedUpdate]
    rest_s: float


def read_opening(run: ConnectedRun, guard: DirectoryGuard) -> RunOpening:
    """Read the state of a run.

    Raises:
        StateUnreadable, StoreUnavailable: A file or blob cannot be read now; no round, update or status is changed.
    """
    spec, prepared, registry, say = run.spec, run.prepared, run.registry, run.view.say
    blobs = run.blobs(guard)
    state, _, meta = load_checkpoint(blobs)
    present = run.connection.ports.boot_time()
    unfinished = resume_round(registry, blobs, spec, prepared, state, say, present)
    rest_s = rest_of_pause(meta, spec, present) if unfinished is None else 0.0
    if rest_s:
        say(f"the next round begins in {duration(rest_s)}, by round_interval_s")
    waiting = waiting_updates(registry, blobs, spec, prepared, say) if unfinished is None else {}
    return RunOpening(guard, blobs, state, unfinished, waiting, rest_s)
