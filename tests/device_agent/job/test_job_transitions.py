"""The table of transitions of a job: every event in every state."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    CoordinatorStarted,
    DownloadByBroker,
    DownloadDamaged,
    DownloadStarted,
    EffectFailed,
    JobEvent,
    LinkRestored,
    MessageReceived,
    ModelEvaluated,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
    Tick,
    TrainingFailed,
    TrainingProgressed,
    UpdateRestored,
    UpdateTrained,
    VectorTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.job_transitions import IGNORED, ILLEGAL, ROWS, TRANSITIONS, kind_of
from fedpatch.shared.errors import IllegalTransition
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.masking_messages import Agreed, Inbox, Roster, Unmask
from fedpatch.shared.wire.messages import (
    Accept,
    Ack,
    Cancel,
    Committed,
    DownBody,
    Evaluation,
    Grant,
    Refused,
    RetryAfter,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import FailReason, RefuseReason
from tests.device_agent.jobs import BLOB, DIGEST, KEY, REQUEST, downloading, requested, training, uploading
from tests.support.specs import TASKS, envelope_of, model, update


def message(body, **where) -> MessageReceived:
    return MessageReceived(envelope_of(body, **where))


EVENTS: dict[str, JobEvent] = {
    "newer request": requested(envelope_of(REQUEST, 2)),
    "newer request, declined": requested(envelope_of(REQUEST, 2), TASKS, AdmissionDecision(False, "no")),
    "same request": requested(envelope_of(REQUEST)),
    "link": LinkRestored(),
    "coordinator": CoordinatorStarted(),
    "cancel": message(Cancel("late")),
    "cancel of another round": message(Cancel("late"), round_number=2),
    "grant": message(Grant(DIGEST, 2, b"\x00")),
    "ack": message(Ack(DIGEST, b"\x01")),
    "retry after": message(RetryAfter(DIGEST, 9.0)),
    "committed": message(Committed(DIGEST)),
    "committed, another update": message(Committed("00" * 32)),
    "refused": message(Refused(DIGEST, RefuseReason.LATE)),
    "roster": message(Roster(0, 2, ())),
    "inbox": message(Inbox(bytes(32), ())),
    "unmask": message(Unmask(bytes(32), b"")),
    "agreed": message(Agreed(bytes(32), b"", ())),
    "message of a device": message(Accept(10)),
    "last chunk": ChunkReceived(cut(BLOB, model(), 2)),
    "download, all on disk": DownloadStarted({model().digest: range(3)}),
    "download by broker": DownloadByBroker(),
    "damage": DownloadDamaged(),
    "progress": TrainingProgressed(KEY, 1, 2),
    "vector": VectorTrained(KEY),
    "trained": UpdateTrained(KEY, update()),
    "measured": ModelEvaluated(KEY, Evaluation(DIGEST, None, 10, 1.0)),
    "training fails": TrainingFailed(KEY, FailReason.TRAINING, ""),
    "restored": UpdateRestored(KEY, update(), REQUEST),
    "effect fails": EffectFailed(FailReason.STORAGE, "disk"),
    "pause": OwnerPaused(),
    "resume": OwnerResumed(),
    "abandon": OwnerAbandoned(""),
    "tick": Tick(),
    "deadline": Tick(),
}
# The next state for each event (row) and state (column); "-": the state stays, "!": IllegalTransition.
GRID = """
                          | idle        | downloading | training    | uploading
newer request             | downloading | downloading | downloading | downloading
newer request, declined   | -           | -           | -           | -
same request              | downloading | -           | -           | -
link                      | -           | -           | -           | -
coordinator               | -           | -           | -           | -
cancel                    | -           | idle        | idle        | idle
cancel of another round   | -           | -           | -           | -
grant                     | -           | -           | -           | -
ack                       | -           | -           | -           | -
retry after               | -           | -           | -           | -
committed                 | -           | -           | -           | idle
committed, another update | -           | -           | -           | -
refused                   | -           | -           | -           | idle
roster                    | -           | -           | -           | -
inbox                     | -           | -           | -           | -
unmask                    | -           | -           | -           | -
agreed                    | -           | -           | -           | -
message of a device       | -           | -           | -           | -
last chunk                | -           | training    | -           | -
download, all on disk     | -           | training    | -           | -
download by broker        | -           | -           | -           | -
damage                    | -           | -           | downloading | -
progress                  | -           | -           | -           | -
vector                    | -           | -           | -           | -
trained                   | -           | -           | uploading   | -
measured                  | -           | -           | idle        | -
training fails            | -           | -           | idle        | -
restored                  | uploading   | !           | !           | !
effect fails              | -           | idle        | idle        | idle
pause                     | -           | -           | -           | -
resume                    | -           | -           | -           | -
abandon                   | -           | idle        | idle        | idle
tick                      | -           | -           | -           | -
deadline                  | -           | idle        | idle        | -
"""
JOBS: dict[JobState, Callable[[], Job]] = {
    JobState.IDLE: lambda: Job(max_blob_bytes=10_000),
    JobState.DOWNLOADING: lambda: downloading(have=frozenset({0, 1})),
    JobState.TRAINING: training,
    JobState.UPLOADING: uploading,
}
CELLS = [
    (name.strip(), state, cell.strip())
    for row in GRID.strip("\n").split("\n")[1:]
    for name, *cells in [row.split("|")]
    for state, cell in zip(JobState, cells, strict=True)
]


def seen_of(job: Job) -> tuple[object, ...]:
    """What a job shows of itself."""
    return job.state, job.key, job.request, job.paused, job.awaits_clearance, job.next_deadline()


@pytest.mark.parametrize(("name", "state", "cell"), CELLS, ids=str)
def test_each_event_in_each_state_leads_to_the_state_of_the_grid(name, state, cell):
    job, event = JOBS[state](), EVENTS[name]
    transition, before = TRANSITIONS[state, kind_of(event)], seen_of(job)
    if cell == "!":
        with pytest.raises(IllegalTransition, match=f"{type(event).__name__} in {state}"):
            job.handle(event, 310.0)
        assert transition is ILLEGAL and seen_of(job) == before
        return
    effects = job.handle(event, 310.0 if name == "deadline" else 20.5)
    after = state if cell == "-" else JobState(cell)
    assert job.state is after
    assert after in (state, *transition.to)
    if transition is IGNORED:
        assert (effects, seen_of(job)) == ([], before)


def test_the_grid_has_every_row_of_the_table():
    assert {kind_of(EVENTS[name]) for name, _, _ in CELLS} == ROWS.keys()
    assert {name for name, _, _ in CELLS} == EVENTS.keys()


def test_the_table_has_a_row_for_every_event_and_every_message_to_a_job():
    assert ROWS.keys() >= set(get_args(JobEvent))
    elsewhere = {WorkRequest}  # a WorkRequested
    assert set(get_args(DownBody)) - elsewhere <= ROWS.keys()


def test_unknown_event_raises_illegal_transition():
    with pytest.raises(IllegalTransition, match="str in idle"):
        JOBS[JobState.IDLE]().handle("chunk", 1.0)  # type: ignore[arg-type]
