"""The agent's loop survives the events that end a round."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from msgspec import UNSET, UnsetType

from fedpatch.device_agent.job import training_progress
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import (
    MakeModel,
    SetupFailed,
    Trained,
    TrainFailed,
    TrainProgress,
    WorkerSetup,
)
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy
from fedpatch.device_agent.policy.private_floor import PrivateFloor
from fedpatch.device_agent.policy.usage import UsageFile
from fedpatch.device_agent.runtime.agent import EARLY_DEATHS, Agent
from fedpatch.device_agent.runtime.agent_composition import Ports, make_agent
from fedpatch.device_agent.runtime.agent_events import EventQueue, Stop
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.idle_release import IdleTimer
from fedpatch.device_agent.runtime.name_check import NameChecked
from fedpatch.device_agent.runtime.presence import Identity, Presence
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.runtime.training_supervisor import Died, Trainer
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.history import read_history
from fedpatch.device_agent.state.leader_epoch import LEADER_EPOCH_FILE, LeaderEpoch
from fedpatch.device_agent.state.patch_store import PatchKey
from fedpatch.device_agent.state.status_file import StatusFile
from fedpatch.device_agent.state.storage_check import Storage
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.device_agent.telemetry.vitals import VitalsPace, vitals_of
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.mqtt.client import Connected, Disconnected, Received
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut, encode_chunk
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.features import COORDINATOR_FEATURES, SHARED_ID_FEATURE
from fedpatch.shared.wire.messages import (
    Accept,
    Cancel,
    Claim,
    CoordinatorState,
    Decline,
    DeviceState,
    Envelope,
    Failed,
    JobStatus,
    Manifest,
    Offer,
    Progress,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailCause, FailReason, JobPhase
from tests.device_agent.fake_link import Wire
from tests.device_agent.jobs import BLOB, REQUEST
from tests.device_agent.owners import READY, WELL, facts, limits_of, owner_of
from tests.support.specs import MODEL_SCHEMA, RUN, SCHEMA, TASK, envelope_of, model, report, update

UPDATE = b"u" * 350
GOLDEN = Path(__file__).parents[2] / "golden"
DOWN = topics.down("lab", "pi")
CONNECTED = Connected("5", None, retain_available=True, session_present=False)
ECHO = "the published state of the agent"
WILL = "the last will of an earlier connection of the agent"


def asked(round_number: int = 1, epoch: int = 1, request: WorkRequest = REQUEST) -> list[Received]:
    """A work request and the chunks of its model."""
    digest = model().digest
    chunks = [encode_chunk(cut(BLOB, model(), index)) for index in range(3)]
    work = Received(DOWN, encode(envelope_of(request, round_number, epoch=epoch)), False)
    return [work, *(Received(topics.model_chunk("lab", digest, i), chunk, True) for i, chunk in enumerate(chunks))]


def stated(state: DeviceState | CoordinatorState) -> Received:
    """Presence, on the topic of its client."""
    device = isinstance(state, DeviceState)
    topic = topics.device_state("lab", "pi") if device else topics.coordinator_state("lab")
    return Received(topic, encode(Envelope(state)), True)


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Runs an agent on given events and returns its answers; its training process stays silent."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    def play(*events, wire: Wire | None = None, vitals: VitalsPace | None = None) -> list:
        identity, wire, queue = Identity.new("lab", "pi"), wire or Wire(), EventQueue()
        trainer = Trainer(WorkerSetup("none", "", "", "", "pi"), queue.put)
        owner, limits = owner_of(), limits_of(tmp_path, known=False)
        agent = Agent(
            identity,
            Job(max_blob_bytes=10_000),
            EffectRunner(identity, link=wire, trainer=trainer, usage=owner.meter, limits=limits, directory=tmp_path),
            queue=queue,
            link=wire,
            trainer=trainer,
            owner=owner,
            limits=limits,
            storage=Storage(tmp_path),
            presence=Presence(identity, wire, DuplicateIdDetector(identity.boot, 3600.0), vitals),
            housekeeping=Housekeeping(trainer, IdleTimer(0.0), ServiceManager()),
            status=StatusFile(tmp_path, {}),
            leader=LeaderEpoch(tmp_path, "lab"),
        )
        own = {ECHO: DeviceState(online=True, boot=identity.boot), WILL: DeviceState(online=False, boot=identity.boot)}
        for event in (CONNECTED, *events, Stop(7)):
            queue.put(stated(own[event]) if isinstance(event, str) else event)
        assert agent.run() == 7
        return wire.up

    return play


KEY = JobKey(RUN, 1, 1, TASK)


def test_request_is_declined_while_another_agent_has_the_name_and_not_for_the_current_job(played):
    """The old card and the new one would each spend the allowance of the device."""
    other = stated(DeviceState(online=True, boot="another"))
    twin = (ECHO, CONNECTED, other)
    (declined,) = played(READY, *twin, *asked())
    assert isinstance(declined, Decline) and declined.reason == DeclineReason.UNWILLING
    accepted = played(READY, ECHO, *asked(), CONNECTED, other, *asked()[:1])
    assert Accept(10) in accepted and not any(isinstance(one, Decline) for one in accepted)


@pytest.mark.parametrize(
    "end", [SetupFailed("no memory for torch", 1, (KEY,)), Died("ended by SIGKILL", (KEY,))], ids=str
)
def test_a_training_process_that_fails_costs_the_round_and_not_the_agent(played, end):
    assert played(READY, *asked(), end, *asked(2)) == [
        Accept(10),
        Progress(JobPhase.TRAINING, 0, 1),
        Failed(FailReason.TRAINING, cause=FailCause.PROCESS),
        Accept(10),
        Progress(JobPhase.TRAINING, 0, 1),
    ]


def led(epoch: int | UnsetType, number: int = 1) -> list[Received]:
    """A work request from the leader of an epoch, and the chunks of its model."""
    return asked(number, epoch=1, request=replace(REQUEST, leader_epoch=epoch))


def test_request_of_a_former_leader_is_ignored_also_after_a_restart(played):
    work = [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]
    assert played(READY, *led(7)) == work
    assert played(READY, *led(6)) == []
    assert played(READY, *led(UNSET)) == work
    assert played(READY, *led(8)) == work
    assert played(READY, *led(7)) == []


def test_request_with_a_closed_term_of_a_later_version_is_declined(played):
    """Without an answer, the coordinator would wait for this device in each round."""
    plain = msgpack.unpackb(encode(envelope_of(REQUEST, 1)))
    plain["b"]["secure"] = msgpack.unpackb(bytes.fromhex((GOLDEN / "work_request.hex").read_text()))["b"]["secure"]
    plain["b"]["secure"]["threshold"] = "all_of_the_future"
    [answer] = played(READY, Received(DOWN, msgpack.packb(plain), False))
    assert (type(answer), answer.reason) == (Decline, DeclineReason.UNSUPPORTED)
    assert "all_of_the_future" in answer.detail


def test_presence_of_a_former_leader_is_ignored(played):
    former, now = (stated(CoordinatorState(online=True, boot=f"{n}" * 16, leader_epoch=n)) for n in (6, 7))
    wire = Wire()
    played(now, former, READY, *led(6), wire=wire)
    assert wire.up == []


@pytest.mark.parametrize("content", ["", "lab", "lab seven", "\udc80", "another-fleet 9"])
def test_note_of_the_epoch_that_is_damaged_or_of_another_fleet_is_no_epoch(tmp_path: Path, content: str):
    (tmp_path / LEADER_EPOCH_FILE).write_text(content, errors="surrogateescape")
    assert LeaderEpoch(tmp_path, "lab").admits(1)
    assert not LeaderEpoch(tmp_path, "lab").admits(0)


@pytest.mark.parametrize(
    ("end", "error"),
    [(SetupFailed("no such task", 2), UsageError), (SetupFailed("no data", 1), DataError), (Died("gone"), DataError)],
    ids=str,
)
def test_a_device_that_never_was_ready_has_nothing_to_live_for(played, end, error):
    with pytest.raises(error, match=r"no such task|no data|before it was ready"):
        played(end)


def test_a_training_process_that_is_killed_while_it_loads_is_started_again(played):
    """Loading torch takes half a minute, in which memory may run out. After too many kills the agent ends."""
    killed = Died("ended by SIGKILL", killed=True)
    assert played(*[killed] * EARLY_DEATHS, READY, *asked())[0] == Accept(10)
    with pytest.raises(DataError, match="before it was ready"):
        played(*[killed] * (EARLY_DEATHS + 1))


def test_progress_without_a_connection_is_not_kept(played, monkeypatch):
    """Hours of progress would fill the queue and leave no room for presence after a reconnect."""
    monkeypatch.setattr(training_progress, "PROGRESS_S", 0.0)
    progress = [TrainProgress(KEY, step, 9) for step in range(1, 6)]
    answers = played(READY, *asked(), Disconnected("gone"), *progress[:4], CONNECTED, progress[4])
    assert answers[-1] == Progress(JobPhase.TRAINING, 5, 9)
    assert len(answers) == 3


@pytest.mark.parametrize("lost", [(), (JobKey(RUN, 1, 2, TASK),)], ids=["idle", "of another round"])
def test_the_end_of_another_training_process_costs_no_round(played, lost):
    """The next process was started for this round before the agent received the end of the other one."""
    answers = played(READY, *asked(), Died("ended by SIGKILL", lost), TrainFailed(KEY, FailReason.NOT_FINITE, "late"))
    assert answers == [Accept(10), Progress(JobPhase.TRAINING, 0, 1), Failed(FailReason.NOT_FINITE)]


def test_a_coordinator_that_came_back_takes_over_what_is_trained(played):
    again = asked(epoch=2)[0]
    answers = played(READY, *asked(), again, TrainFailed(KEY, FailReason.NOT_FINITE, "late"))
    assert answers == [
        *[Accept(10), Progress(JobPhase.TRAINING, 0, 1)],
        *[Accept(10), Progress(JobPhase.TRAINING, 0, 1)],
        Failed(FailReason.NOT_FINITE),
    ]


def test_news_of_the_same_round_with_other_work_are_passed_over(played):
    other = replace(REQUEST, private="all")
    events = [TrainProgress(KEY, 3, 5), TrainFailed(KEY, FailReason.NOT_FINITE, "late")]
    answers = played(READY, *asked(), *asked(epoch=2, request=other), *events)
    assert answers == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)] * 2


class TestOwnersLimits:
    """For any request, a coordinator gets nothing that the owner's limits forbid."""

    OPEN = replace(REQUEST, private="none", features=COORDINATOR_FEATURES)
    WHOLE = replace(update(), schema=SCHEMA)

    def test_a_request_below_the_floor_is_declined_and_nothing_is_fetched(self, played):
        answers = played(READY, *asked(request=self.OPEN), *asked(2))
        assert [type(one) for one in answers] == [Decline, Accept, Progress]
        assert answers[0].reason is DeclineReason.PRIVATE_POLICY

    def test_a_lasting_limit_comes_before_facts_are_looked_at(self, played):
        endless = replace(REQUEST, plan=replace(REQUEST.plan, steps=10**8), features=COORDINATOR_FEATURES)
        [answer] = played(READY, asked(request=endless)[0])
        assert answer.reason is DeclineReason.PLAN_LIMIT

    def test_an_update_of_other_tensors_is_not_offered(self, played, caplog):
        answers = played(READY, *asked(), Trained(KEY, self.WHOLE, report()))
        assert answers[-1] == Failed(FailReason.TRAINING)
        assert "does not hold just the tensors that may leave" in caplog.text

    def test_an_update_that_waited_is_not_offered_before_the_model_is_known(self, played, tmp_path):
        spool = spool_with(tmp_path, REQUEST, update(UPDATE))
        assert played() == []
        assert set(played(READY, stated(CoordinatorState(True, "c1")))) == {Offer(update(UPDATE))}
        assert spool.load() is not None

    def test_an_update_that_waited_is_dropped_where_the_owner_keeps_more_now(self, played, tmp_path, caplog):
        spool = spool_with(tmp_path, self.OPEN, replace(update(UPDATE), schema=SCHEMA))
        assert played(READY, *asked()) == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]
        assert "is dropped: the owner keeps affine private at least" in caplog.text
        assert spool.load() is None


@pytest.mark.parametrize(("admission", "answers"), [("always", [Offer(update(UPDATE))]), ("never", [])])
def test_an_update_that_waited_is_dropped_where_the_owner_takes_part_no_more(tmp_path, caplog, admission, answers):
    spool = spool_with(tmp_path, REQUEST, update(UPDATE))
    given = {"data": "none", "fleet": "lab", "state_dir": str(tmp_path), "admission": admission}
    wire, settings = Wire(), load(AgentSettings, file=None, environ={}, flags=given)
    ports = Ports(link=lambda *_, **__: wire, trainer=Silent, root=tmp_path)
    agent = make_agent(settings, Identity.new("lab", "pi"), EventQueue(), ports)
    agent.turn(CONNECTED)
    agent.turn(READY)
    assert [one for one in wire.up if isinstance(one, Offer)] == answers
    assert (spool.load() is None, "its owner set admission to never" in caplog.text) == (not answers, not answers)


def test_status_has_the_whole_path_of_an_admission_file(tmp_path, monkeypatch):
    """Another program, such as `fedpatch-agent bus`, may read it from another working directory."""
    monkeypatch.chdir(tmp_path)
    given = {"data": "none", "fleet": "lab", "state_dir": str(tmp_path), "admission": "file:order"}
    settings = load(AgentSettings, file=None, environ={}, flags=given)
    ports = Ports(link=lambda *_, **__: Wire(), trainer=Silent, root=tmp_path)
    agent = make_agent(settings, Identity.new("lab", "pi"), EventQueue(), ports)
    agent._report()
    assert json.loads((tmp_path / "status.json").read_bytes())["admission"] == f"file:{tmp_path / 'order'}"


class Silent(Trainer):
    """Starts no process."""

    def make_model(self, command: MakeModel) -> None:
        """No model is made."""


def spool_with(directory: Path, request: WorkRequest, manifest: Manifest) -> UpdateSpool:
    """A spool with an update that waited when the agent ended."""
    spool = UpdateSpool(directory / "spool")
    spool.update_path.write_bytes(UPDATE)
    spool.save(Spooled(KEY, manifest, request))
    return spool


def ready(wire: Wire) -> list[DeviceState]:
    """Presence messages of the device since its task was loaded."""
    return [one for one in wire.states if isinstance(one, DeviceState) and one.online and one.tasks]


class TestPresence:
    def test_presence_is_published_again_to_a_coordinator_that_has_just_started(self, played):
        """A broker that retains nothing has not delivered it; presence has the job in progress, which continues."""
        wire = Wire()
        here, gone = (CoordinatorState(online, "c1") for online in (True, False))
        answers = played(READY, *asked(), *map(stated, (here, here, gone, here)), wire=wire)
        assert answers == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]
        assert [state.job for state in ready(wire)] == [None, JobStatus(RUN, 1, 1, JobPhase.TRAINING)]

    def test_presence_is_published_again_after_the_will_of_a_replaced_connection_came_late(self, played):
        wire = Wire()
        played(READY, WILL, ECHO, WILL, WILL, ECHO, CONNECTED, WILL, ECHO, wire=wire)
        assert len(ready(wire)) == 1 + 1 + 1

    def test_presence_is_published_to_each_coordinator_once(self, played):
        """Another boot is another coordinator; a process that only claims the fleet is not a coordinator."""
        wire = Wire()
        start = Received(topics.coordinator_state("lab"), encode(Envelope(Claim("c3"))), False)
        played(READY, stated(CoordinatorState(True, "c1")), stated(CoordinatorState(True, "c2")), start, wire=wire)
        assert len(ready(wire)) == 3

    def test_coordinator_that_was_restored_from_a_backup_may_repeat_rounds(self, played):
        over = Received(DOWN, encode(envelope_of(Cancel("late"), 5)), False)
        former, restored = (stated(CoordinatorState(True, boot)) for boot in ("c1", "c2"))
        asks, again = asked(5)[0], asked(4)[0]
        assert played(READY, former, asks, over, again) == [Accept(10)]
        assert played(READY, former, asks, over, restored, asks, again) == [Accept(10), Accept(10)]

    def test_presence_is_published_again_after_the_data_have_grown(self, played):
        wire = Wire()
        answers = played(READY, *asked(), replace(READY, num_examples=12), Died("gone", (KEY,)), asked(2)[0], wire=wire)
        assert answers == [
            Accept(10),
            Progress(JobPhase.TRAINING, 0, 1),
            Failed(FailReason.TRAINING, cause=FailCause.PROCESS),
            Accept(12),
        ]
        assert [(s.tasks[0].num_examples, s.job) for s in ready(wire)] == [
            (10, None),
            (12, JobStatus(RUN, 1, 1, JobPhase.TRAINING)),
        ]

    def test_presence_without_tasks_is_published_while_the_task_loads(self, played):
        """It announces the device to a coordinator, also to one that starts meanwhile."""
        wire = Wire()
        played(stated(CoordinatorState(True, "c1")), READY, wire=wire)
        online = [state for state in wire.states if isinstance(state, DeviceState) and state.online]
        assert [len(state.tasks) for state in online] == [0, 0, 1]
        assert len({state.boot for state in online}) == 1

    def test_device_that_loads_its_task_answers_no_request(self, played):
        assert played(*asked()) == []


class TestNamesake:
    OTHER = stated(DeviceState(online=True, boot="another"))

    def test_is_named_and_no_longer_fought(self, played, tmp_path, caplog):
        wire, again = Wire(), (Disconnected("it was lost"), CONNECTED)
        with pytest.raises(_Seen) as seen, pytest.MonkeyPatch.context() as patch:
            patch.setattr(StatusFile, "write", _see)
            played(READY, ECHO, *again, self.OTHER, wire=wire)
        assert wire.patient
        [line] = [one for one in caplog.records if one.levelname == "ERROR"]
        assert line.getMessage() == seen.value.problem
        assert seen.value.problem == (
            "another agent uses the device id 'pi' in fleet 'lab'; end one of them, or give it another --device-id"
        )

    def test_is_named_in_the_published_state(self, played):
        wire = Wire()
        played(READY, ECHO, CONNECTED, self.OTHER, wire=wire)
        *before, last = [state for state in wire.states if isinstance(state, DeviceState) and state.online]
        assert SHARED_ID_FEATURE in last.features
        assert not any(SHARED_ID_FEATURE in state.features for state in before)

    @pytest.mark.parametrize(
        "events",
        [[OTHER, ECHO], [ECHO, OTHER, OTHER]],
        ids=["before its own state was received", "on one connection"],
    )
    def test_is_not_seen_in_ones_own_former_life(self, played, events):
        """The agent's earlier state may be on the topic at its start, or when a broker returns with an old copy."""
        wire = Wire()
        played(READY, *events, wire=wire)
        assert not wire.patient


class _Seen(Exception):
    """The status holds a problem."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def test_storage_is_not_looked_at_for_a_job_in_hand(played, monkeypatch):
    """The job has its storage already: a repeated request, also of a newer epoch, causes no check; another round does."""
    looked: list[str] = []
    monkeypatch.setattr(Storage, "problem", lambda *_: looked.append("looked"))
    played(READY, *asked(), *asked(), *asked(epoch=2))
    assert len(looked) == 1
    played(READY, *asked(), *asked(2))
    assert len(looked) == 3


@pytest.mark.parametrize(
    ("envelope", "examples", "reason"),
    [
        (envelope_of(REQUEST, task="mnist"), 10, DeclineReason.UNKNOWN_TASK),
        (envelope_of(replace(REQUEST, schema="00" * 32)), 10, DeclineReason.SCHEMA_MISMATCH),
        (envelope_of(replace(REQUEST, encoding="~")), 10, DeclineReason.UNSUPPORTED),
        (envelope_of(replace(REQUEST, model=model(bytes(10_001)))), 10, DeclineReason.UNSUPPORTED),
        (envelope_of(REQUEST), 0, DeclineReason.TOO_LITTLE_DATA),
    ],
    ids=lambda value: str(value) if isinstance(value, DeclineReason) else "",
)
def test_request_that_the_device_cannot_serve_is_declined_before_disk_and_owner_are_asked(
    played, monkeypatch, envelope, examples, reason
):
    asked_ones: list[str] = []
    for cls, name in ((OwnerLimits, "refusal"), (Storage, "problem"), (OwnerPolicy, "decide")):
        monkeypatch.setattr(cls, name, lambda *_, who=cls.__name__: asked_ones.append(who))
    ready = replace(READY, num_examples=examples)
    [answer] = played(ready, Received(DOWN, encode(envelope), False))
    assert (answer.reason, asked_ones) == (reason, [])


def test_request_in_other_words_for_the_private_tensors_of_a_damaged_patch_is_declined(played, tmp_path):
    path = tmp_path / "patches" / PatchKey(TASK, REQUEST.schema, "affine").file_name
    path.parent.mkdir(mode=0o700)
    PrivateFloor(path.parent, TASK).note({"bn.weight"}, MODEL_SCHEMA)
    path.write_bytes(b"damaged")
    [answer] = played(READY, *asked(request=replace(REQUEST, private="names:bn.*")))
    assert isinstance(answer, Decline) and "damaged" in answer.detail


def test_status_is_starting_until_the_task_is_loaded(played, monkeypatch):
    states: list[str] = []
    monkeypatch.setattr(StatusFile, "write", lambda _, changing: states.append(changing["state"]))
    played(READY)
    assert [one for at, one in enumerate(states) if states[at - 1 : at] != [one]] == ["starting", "idle", "stopped"]


@pytest.mark.parametrize("why", ["", "the kernel refuses a seccomp filter (Invalid argument)"])
def test_status_and_log_say_that_the_network_of_the_task_is_open(played, tmp_path, monkeypatch, caplog, why):
    statuses: list[dict] = []
    monkeypatch.setattr(StatusFile, "write", lambda _self, changing: statuses.append(dict(changing)))
    played(replace(READY, network_open=why))
    assert statuses[-1]["network_open"] == why
    assert (f"{why}; the task's code can open connections" in caplog.text) == bool(why)


def test_status_reports_that_every_request_is_declined(played, monkeypatch, tmp_path):
    declines: list[str] = []
    monkeypatch.setattr(StatusFile, "write", lambda _, changing: declines.append(changing["declines"]))
    played(READY)
    assert set(declines) == {""}
    (tmp_path / "patches").mkdir(exist_ok=True)
    (tmp_path / "patches" / f"{TASK}.private").write_bytes(b"?")
    played(READY)
    assert f"{TASK}.private" in declines[-1]


def _see(self: StatusFile, changing: dict) -> None:
    if changing["problem"] and changing["state"] != "stopped":
        raise _Seen(changing["problem"])


def test_vitals_are_published_at_the_first_facts_and_to_each_new_coordinator(played):
    """Not before the task is loaded, and not again for a change that can wait; the last message has the newest facts."""
    busy = facts(load_per_cpu=9.0)
    new = [stated(CoordinatorState(True, boot)) for boot in ("c1", "c1", "c2")]
    sent = played(WELL, READY, busy, *new, vitals=VitalsPace())
    assert sent == [vitals_of(WELL), vitals_of(busy), vitals_of(busy)]


def test_vitals_are_published_again_after_each_connect(played):
    sent = played(READY, WELL, Disconnected("gone"), facts(load_per_cpu=9.0), CONNECTED, vitals=VitalsPace())
    assert sent == [vitals_of(WELL), vitals_of(facts(load_per_cpu=9.0))]


def test_an_owner_who_shares_no_vitals_sends_none(played):
    assert played(READY, WELL, stated(CoordinatorState(True, "c1")), WELL) == []


class Unstarted(Silent):
    """Starts no process at the start of the agent either."""

    def start(self) -> None:
        """Start nothing."""


def agent_in(directory: Path, wire: Wire, *, asks: bool = False, **given: str) -> Agent:
    """An agent without a training process."""
    flags = {"data": "none", "fleet": "lab", "state_dir": str(directory), **given}
    settings = load(AgentSettings, file=None, environ={}, flags=flags)
    asking = (lambda: None) if asks else None
    ports = Ports(link=lambda *_, **__: wire, trainer=Unstarted, root=directory, ask_for_name=asking)
    return make_agent(settings, Identity.new("lab", "pi"), EventQueue(), ports)


def test_agent_whose_name_is_in_use_connects_once_task_and_data_are_loaded(tmp_path):
    """Else an agent with wrong data would cut off a running one with the same name."""
    wire = Wire()
    agent = agent_in(tmp_path, wire, asks=True)
    agent.start()
    agent.turn(NameChecked(in_use=True))
    before = wire.started
    agent.turn(READY)
    assert (before, wire.started) == (False, True)


def test_agent_whose_name_is_in_use_declines_until_the_other_was_not_seen_for_a_while(tmp_path):
    """It may be the old card of this device, whose allowance would be spent twice before both see each other."""
    wire = Wire()
    agent = agent_in(tmp_path, wire, asks=True, admission="always")
    agent.start()
    for event in (NameChecked(in_use=True), READY, CONNECTED, asked()[0]):
        agent.turn(event)
    assert [one.reason for one in wire.up if isinstance(one, Decline)] == [DeclineReason.UNWILLING]


def test_agent_whose_name_is_free_connects_while_its_task_is_loaded(tmp_path):
    wire = Wire()
    agent = agent_in(tmp_path, wire, asks=True)
    agent.start()
    before = wire.started
    agent.turn(NameChecked(in_use=False))
    assert (before, wire.started) == (False, True)


def test_wrong_data_end_the_agent_before_it_cuts_off_a_running_one(tmp_path):
    wire = Wire()
    agent = agent_in(tmp_path, wire, asks=True)
    agent.start()
    agent.turn(NameChecked(in_use=True))
    with pytest.raises(UsageError, match="no such data"):
        agent.turn(SetupFailed("no such data", UsageError.exit_code))
    assert not wire.started


@pytest.mark.parametrize(("shares", "declined"), [("true", "privacy_required"), ("false", "unwilling")])
def test_decline_tells_its_reason_unless_the_owner_shares_none_and_the_history_has_it(tmp_path, shares, declined):
    wire = Wire()
    agent = agent_in(tmp_path, wire, admission="always", share_reasons=shares, dp_required="true")
    request = replace(REQUEST, features=COORDINATOR_FEATURES)
    agent.turn(CONNECTED)
    agent.turn(READY)
    agent.turn(asked(request=request)[0])
    (answer,) = (one for one in wire.up if isinstance(one, Decline))
    assert (answer.reason, bool(answer.detail)) == (declined, shares == "true")
    (entry,) = read_history(tmp_path)
    assert (entry.what, entry.words.partition(":")[0], entry.run) == ("declined", "privacy_required", RUN)


def test_presence_names_no_preference_where_the_owner_shares_no_reasons():
    wire, identity = Wire(), Identity.new("lab", "pi")
    presence = Presence(identity, wire, DuplicateIdDetector(identity.boot, 1.0), shares_reasons=False)
    presence.link_up(retain=True)
    presence.publish((), None, Condition.OTHER_SSID)
    (state,) = wire.states
    assert isinstance(state, DeviceState) and state.unwilling is None


def test_all_bytes_of_the_link_count_for_the_day(tmp_path):
    wire = Wire()
    agent = agent_in(tmp_path, wire)
    for event in (CONNECTED, READY):
        agent.turn(event)
    wire.traffic = wire.traffic.plus(Traffic(sent_bytes=3 * 2**20, received_bytes=2**20))
    agent.turn(None)
    assert UsageFile(tmp_path).today.traffic_bytes == wire.traffic.total_bytes


def test_bytes_of_the_look_for_another_agent_count_for_the_day(tmp_path):
    wire = Wire()
    agent = agent_in(tmp_path, wire, asks=True)
    for event in (CONNECTED, READY, NameChecked(in_use=False, traffic=Traffic(3 * 2**20, 2**20)), None):
        agent.turn(event)
    assert UsageFile(tmp_path).today.traffic_bytes == wire.traffic.total_bytes + 4 * 2**20
