"""The effect runner: refusals of disk and broker, personal models, and downloads by deltas."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import Effect, JobState, SpoolUpdate
from fedpatch.device_agent.job.job_events import (
    ChunkReceived,
    EffectFailed,
    MessageReceived,
    ModelEvaluated,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
    TrainingFailed,
    UpdateRestored,
    UpdateTrained,
    WorkRequested,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import Evaluated, MakeModel, TrainCommand, Trained, WorkerSetup
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.runtime.idle_release import LONG_REST_S
from fedpatch.device_agent.runtime.model_fetcher import FetchEvent, ModelFetcher
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.state.download_files import bytes_of
from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY, Held, ModelCache
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.tasks.model_metadata import MODEL_FILE
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import (
    Accept,
    Ack,
    Body,
    Cancel,
    Committed,
    Evaluation,
    Failed,
    Grant,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
    WorkRequest,
)
from fedpatch.shared.wire.plan_terms import TrainPhase
from fedpatch.shared.wire.reason_codes import Condition, FailReason, JobPhase, RefuseReason
from tests.device_agent.delta_jobs import BLOBS, DELTAS, STEP_BLOBS, STEPS, VERSIONS, ask_holding, delta_request
from tests.device_agent.effect_runners import PlayedDevice, performer_of
from tests.device_agent.exported_models import describe
from tests.device_agent.fake_link import Wire
from tests.device_agent.jobs import BLOB, KEY, REQUEST, requested
from tests.support.brokers import PATIENCE_S
from tests.support.masked_group import terms_of
from tests.support.specs import envelope_of, model, report, update
from tests.support.web_server import sends, server

UPDATE = b"u" * 350
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)


class RecordedTrainer(Trainer):
    """Starts no process and records its commands."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.given: list[Any] = []

    def train(self, command: TrainCommand) -> None:
        self.given.append(command)

    def make_model(self, command: MakeModel) -> None:
        self.given.append(command)


class TestFetched:
    """Downloads by URL, from a real server."""

    def test_bytes_of_a_fetch_that_a_pause_stopped_count_and_the_next_fetch_completes_the_download(self, tmp_path):
        with server(sends(200, BLOB)) as url:
            device = Fetching(tmp_path)
            device.perform(device.job.handle(requested_by_url(url), 0.0))
            stopped = device.events(4)
            device.perform(device.job.handle(OwnerPaused(), 0.0))
            assert device.take(stopped) == []
            assert device.usage.spent(0.0).traffic_bytes == len(BLOB)
            device.perform(device.job.handle(OwnerResumed(), 0.0))
            device.take(device.events(4))
        assert device.job.state is JobState.TRAINING
        assert device.usage.spent(0.0).traffic_bytes == 2 * len(BLOB)
        assert device.performer.times.downloaded == {"mqtt": 0, "url": len(BLOB)}
        assert device.wire.subscribed == set()

    def test_wrong_bytes_are_named_and_the_model_comes_by_mqtt(self, tmp_path, caplog):
        with server(sends(200, b"x" * len(BLOB))) as url:
            device = Fetching(tmp_path)
            device.perform(device.job.handle(requested_by_url(f"{url}?X-Amz-Signature=secret"), 0.0))
            device.take(device.events(4))
        assert f"{url} has not the bytes" in caplog.text and "secret" not in caplog.text
        assert device.job.state is JobState.DOWNLOADING
        assert device.wire.subscribed == {topics.model_chunks_filter("lab", model().digest)}
        for index in range(3):
            device.perform(device.job.handle(ChunkReceived(cut(BLOB, model(), index)), 0.0))
        assert len(device.trainer.given) == 1

    def test_server_that_refuses_leaves_the_chunks_to_the_broker(self, tmp_path, caplog):
        with server(sends(403)) as url:
            device = Fetching(tmp_path)
            device.perform(device.job.handle(requested_by_url(url), 0.0))
            device.take(device.events(1))
        assert "403" in caplog.text
        assert device.wire.subscribed == {topics.model_chunks_filter("lab", model().digest)}
        assert [type(one) for one in device.perform(device.job.tick(1.0))] == [Need]


def requested_by_url(url: str) -> WorkRequested:
    """A request as the agent passes it to its job: the URL is in the plan only."""
    asked = requested(envelope_of(replace(REQUEST, model=model().at(url)), 1))
    return replace(asked, envelope=envelope_of(REQUEST, 1))


class Fetching(PlayedDevice):
    """A device that fetches by URL, with a fake training process."""

    def __init__(self, directory: Path) -> None:
        self._queue: SimpleQueue[FetchEvent] = SimpleQueue()
        setup = WorkerSetup("none", "", str(directory), str(directory / "patches"), "pi")
        fetcher = ModelFetcher(self._queue.put, plain_loopback=True)
        super().__init__(directory, RecordedTrainer(setup, lambda event: None), fetcher=fetcher)

    def events(self, count: int) -> list[FetchEvent]:
        return [self._queue.get(timeout=PATIENCE_S) for _ in range(count)]

    def take(self, events: list[FetchEvent]) -> list[Body]:
        return [
            body
            for event in events
            for one in self.performer.fetched(event)
            for body in self.perform(self.job.handle(one, 0.0))
        ]


class Device(PlayedDevice):
    """A job and its effect runner; if the device keeps models, the commands to its training process are recorded."""

    def __init__(self, directory: Path, models: ModelStore | None = None) -> None:
        setup = WorkerSetup("none", "", str(directory), str(directory / "patches"), "pi")
        super().__init__(directory, (RecordedTrainer if models else Trainer)(setup, lambda event: None), models=models)

    def ask(self, round_number: int = 1) -> list[Body]:
        return self.perform(self.job.handle(requested(envelope_of(REQUEST, round_number)), 0.0))

    def chunk(self, index: int) -> list[Body]:
        return self.perform(self.job.handle(ChunkReceived(cut(BLOB, model(), index)), 0.0))

    def download(self) -> list[Body]:
        return [body for index in range(3) for body in self.chunk(index)]

    def upload(self) -> None:
        spool = self.directory / "spool"
        (spool / "update.bin").write_bytes(UPDATE)
        self.job.handle(UpdateRestored(KEY, update(UPDATE), REQUEST), 0.0)
        assert isinstance(self.perform(self.job.tick(0.0))[0], Offer)


def waiting(device: Device) -> None:
    """Restart the device while its update waits."""
    spool = UpdateSpool(device.directory / "spool")
    spool.update_path.write_bytes(UPDATE)
    spool.save(Spooled(KEY, update(UPDATE), REQUEST))
    device.take_up_spooled()
    assert device.job.state is JobState.UPLOADING


def stuck(device: Device) -> None:
    """The spool's note can be neither deleted nor replaced."""
    (device.directory / "spool" / "offer.msgpack").unlink(missing_ok=True)
    (device.directory / "spool" / "offer.msgpack" / "in the way").mkdir(parents=True)


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path)


def test_a_disk_that_takes_no_model_ends_the_round_and_not_the_agent(device):
    obstacle = device.directory / "downloads"
    obstacle.write_text("where a directory should be")
    assert device.ask() == [Accept(10), Failed(FailReason.STORAGE)]
    assert device.job.status() is None
    obstacle.unlink()
    assert device.ask(2) == [Accept(10)]
    assert device.job.state is JobState.DOWNLOADING
    assert device.chunk(0) == []


@pytest.mark.usefixtures("downloads_on_disk")
def test_a_model_that_cannot_be_read_back_ends_the_round(device):
    device.ask()
    device.chunk(0)
    device.chunk(1)
    part = device.directory / "downloads" / f"{model().digest}.part"
    part.unlink()
    (part / "in the way").mkdir(parents=True)
    assert device.chunk(2) == [Progress(JobPhase.TRAINING, 0, 1), Failed(FailReason.STORAGE)]
    assert device.job.state is JobState.IDLE
    (part / "in the way").rmdir()
    part.rmdir()
    assert device.ask(2) == [Accept(10)]


def test_failed_removal_of_an_update_is_no_error_of_the_agent(device):
    device.upload()
    stuck(device)
    assert device.perform(device.job.handle(MessageReceived(envelope_of(Committed(update(UPDATE).digest))), 1.0)) == []
    assert device.job.state is JobState.IDLE
    assert device.performer.last_outcome == "committed"


def test_after_a_failure_the_rest_of_a_batch_is_not_done(device):
    """A round that fails before it begins is not accepted first, and its model is not fetched."""
    device.upload()
    stuck(device)
    assert device.ask(2) == [Failed(FailReason.STORAGE)]
    assert device.job.state is JobState.IDLE
    assert not (device.directory / "downloads").exists()


def test_an_update_that_a_newer_epoch_took_over_is_noted_so(device):
    """After a reboot the update is offered in the current epoch."""
    waiting(device)
    taken_over = device.job.handle(requested(envelope_of(REQUEST, epoch=2)), 1.0)
    newer = Spooled(replace(KEY, epoch=2), update(UPDATE), REQUEST)
    assert device.perform(taken_over) == [Accept(10), Offer(update(UPDATE))]
    assert UpdateSpool(device.directory / "spool").load() == newer
    again = Device(device.directory)
    again.take_up_spooled()
    assert again.job.key == newer.key
    thrice = again.job.handle(requested(envelope_of(REQUEST, epoch=3)), 2.0)
    assert again.perform(thrice) == [Accept(10), Offer(update(UPDATE))]


def test_an_update_that_the_card_has_spoilt_is_not_offered(device, caplog):
    """The coordinator would count it as an offence, so the round fails, and the log has the reason."""
    path = device.directory / "spool" / "update.bin"
    path.write_bytes(b"v" + UPDATE[1:])
    device.job.handle(UpdateRestored(KEY, update(UPDATE), REQUEST), 0.0)
    assert device.perform(device.job.tick(0.0)) == [Failed(FailReason.STORAGE)]
    assert device.job.state is JobState.IDLE
    assert not path.exists()
    assert "no longer what training wrote (SHA-256 differs); it is dropped" in caplog.text


def test_a_newer_epoch_that_cannot_be_noted_costs_no_update(device, caplog):
    waiting(device)
    stuck(device)
    taken_over = device.job.handle(requested(envelope_of(REQUEST, epoch=2)), 1.0)
    assert device.perform(taken_over) == [Accept(10), Offer(update(UPDATE))]
    assert "offer.msgpack" in caplog.text


@pytest.mark.parametrize(("rest_s", "stopped"), [(0.0, False), (LONG_REST_S - 1, False), (LONG_REST_S, True)])
def test_a_long_rest_gives_the_memory_of_training_back(device, monkeypatch, rest_s, stopped):
    """Applications on the device can use the memory; a short rest is not worth loading torch again."""
    stops: list[bool] = []
    monkeypatch.setattr(Trainer, "stop", lambda _: stops.append(True))
    device.upload()
    device.perform(device.job.handle(MessageReceived(envelope_of(Committed(update(UPDATE).digest, rest_s))), 1.0))
    assert device.job.state is JobState.IDLE
    assert bool(stops) is stopped


def test_a_training_process_that_cannot_be_started_is_no_matter_of_the_disk(device, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(device.directory / "gone"))
    device.ask()
    last_message = device.download()[-1]
    assert last_message == Failed(FailReason.TRAINING)
    assert device.ask(2) == [Accept(10)]


def test_why_a_round_was_given_up_stays_in_the_log(device, caplog):
    caplog.set_level(logging.INFO)
    device.ask()
    effects = device.job.handle(EffectFailed(FailReason.TRAINING, "KeyError: 'the patient'"), 20.0)
    assert device.perform(effects) == [Failed(FailReason.TRAINING)]
    [line] = [record for record in caplog.records if "the patient" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "\n" not in line.getMessage()


def test_work_that_the_owner_stops_is_no_warning(device, caplog):
    """`journalctl -p warning` shows problems only, and quiet hours are none."""
    caplog.set_level(logging.INFO)
    device.ask()
    device.perform(device.job.handle(OwnerAbandoned("quiet hours, until Sat 07:00"), 20.0))
    [line] = [record for record in caplog.records if "quiet hours" in record.getMessage()]
    assert (line.levelno, line.getMessage()) == (
        logging.INFO,
        "job over: stopped for its owner: quiet hours, until Sat 07:00",
    )


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_devices_share_a_client_id(fleet, device, other_fleet, other_device):
    """For any names: the broker would end the connection of one device when that of the other begins."""
    one, other = Identity.new(fleet, device), Identity.new(other_fleet, other_device)
    assert (one.client_id == other.client_id) == ((fleet, device) == (other_fleet, other_device))
    assert one.client_id != f"fedpatch.{other_fleet}.coordinator"


def test_names_that_look_alike_give_client_ids_that_do_not():
    assert Identity.new("lab", "1-pi").client_id != Identity.new("lab-1", "pi").client_id


class TestPersonalModel:
    @pytest.fixture
    def models(self, tmp_path) -> ModelStore:
        store = ModelStore(tmp_path / "models", 2)
        content = b"trained"
        store.stage(content, describe(KEY.round, content, task=KEY.task, run=KEY.run))
        return store

    @pytest.mark.parametrize(
        ("body", "present"),
        [
            (Committed(update(UPDATE).digest), True),
            (Refused(update(UPDATE).digest, RefuseReason.LATE), False),
            (Cancel("late"), False),
        ],
        ids=["committed", "refused", "cancelled"],
    )
    def test_is_the_present_one_once_the_update_is_committed(self, tmp_path, models, body, present):
        device = Device(tmp_path, models)
        device.upload()
        device.perform(device.job.handle(MessageReceived(envelope_of(body)), 1.0))
        assert (models.current(KEY.task) is not None) == present
        assert device.job.state is JobState.IDLE

    def test_outlasts_a_power_cut_as_its_update_does(self, tmp_path, models):
        device = Device(tmp_path, models)
        waiting(device)
        device.perform(device.job.handle(MessageReceived(envelope_of(Committed(update(UPDATE).digest))), 1.0))
        assert [one.current for one in models.versions(KEY.task)] == [True]

    def test_failed_publish_of_a_model_is_logged_only(self, tmp_path, models, caplog):
        device = Device(tmp_path, models)
        device.upload()
        with FileLock(tmp_path / "models" / KEY.task / ".lock", "held"):
            device.perform(device.job.handle(MessageReceived(envelope_of(Committed(update(UPDATE).digest))), 1.0))
        assert "is not in use: " in caplog.text
        assert not (tmp_path / "spool" / "update.bin").exists()
        assert models.current(KEY.task) is None

    def test_publish_with_a_held_lock_is_retried(self, tmp_path, models, monkeypatch):
        """A rollback on a slow card may hold the lock longer than one wait for it; without a retry the model would be lost."""
        device = Device(tmp_path, models)
        device.upload()
        lock = FileLock(tmp_path / "models" / KEY.task / ".lock", "held")
        monkeypatch.setattr(
            "fedpatch.device_agent.runtime.personal_model_schedule.time.sleep",
            lambda s: lock.release() if s >= 0.5 else None,
        )
        device.perform(device.job.handle(MessageReceived(envelope_of(Committed(update(UPDATE).digest))), 1.0))
        assert models.current(KEY.task) is not None


class TestPersonalModelPutOff:
    """The owner permits one personal model in an interval, in which a second round is committed."""

    SECOND = replace(KEY, round=2)

    def commit_second(self, directory: Path, request: WorkRequest = REQUEST) -> tuple[Device, ModelStore]:
        """A device whose second round, by `request`, is committed, soon after the first was trained."""
        models = ModelStore(directory / "models", 2, every_s=1000.0)
        device = Device(directory, models)
        device.ask()
        device.download()
        device.perform(device.job.handle(MessageReceived(envelope_of(Cancel("late"))), 0.0))
        device.ask(2)
        device.download()
        assert [one.make_model for one in device.trainer.given] == [True, False]
        (directory / "spool" / "update.bin").write_bytes(UPDATE)
        device.performer.note_outcome(Trained(self.SECOND, update(UPDATE), report()))
        device.perform(device.job.handle(UpdateTrained(self.SECOND, update(UPDATE)), 0.0))
        device.performer.run_effect(SpoolUpdate(self.SECOND, update(UPDATE), request))
        device.perform(device.job.handle(MessageReceived(envelope_of(Committed(update(UPDATE).digest), 2)), 1.0))
        assert device.performer.owes_model
        return device, models

    @staticmethod
    def stage(models: ModelStore) -> None:
        """The training process has made the model of the second round."""
        models.stage(b"trained", describe(2, b"trained", task=KEY.task, run=KEY.run))

    def test_is_made_and_published_when_the_interval_is_over(self, tmp_path):
        device, models = self.commit_second(tmp_path)
        due = device.performer.next_deadline()
        assert due is not None
        device.performer.tick(due - 1.0)
        assert isinstance(device.trainer.given[-1], TrainCommand)
        device.performer.tick(due)
        assert isinstance(device.trainer.given[-1], MakeModel)
        self.stage(models)
        device.model_made()
        assert models.current(KEY.task) is not None
        assert not list((tmp_path / "spool").iterdir())
        assert device.performer.next_deadline() is None

    def test_that_of_a_masked_round_is_made_by_the_process_that_trained_it(self, tmp_path):
        device, _ = self.commit_second(tmp_path, replace(REQUEST, secure=terms_of(3)))
        device.performer.tick(device.performer.next_deadline() or 0.0)
        assert isinstance(device.trainer.given[-1], MakeModel)
        assert device.performer.making_model

    def test_end_of_the_training_process_leaves_it_due(self, tmp_path):
        device, _ = self.commit_second(tmp_path)
        device.model_made()  # as after the death of a process
        assert device.performer.owes_model
        device.performer.make_owed_model()
        assert isinstance(device.trainer.given[-1], MakeModel)

    def test_an_evaluate_round_leaves_it_due_and_is_not_put_off_itself(self, tmp_path):
        device, _ = self.commit_second(tmp_path)
        due = device.performer.next_deadline()
        asked = replace(REQUEST, evaluate=True)
        device.perform(device.job.handle(requested(envelope_of(asked, 3)), 0.0))
        device.download()
        command = device.trainer.given[-1]
        assert (command.evaluate, command.make_model, command.hold) == (True, False, False)
        evaluation = Evaluation(REQUEST.model.digest, 0.5, 20, 0.25)
        device.perform(device.job.handle(ModelEvaluated(command.key, evaluation), 2.0))
        assert device.performer.owes_model
        assert device.performer.next_deadline() == due

    def test_an_evaluate_round_that_finishes_the_model_replaces_it(self, tmp_path):
        device, models = self.commit_second(tmp_path)
        plan = replace(REQUEST.plan, finish=(TrainPhase("all"),))
        device.perform(device.job.handle(requested(envelope_of(replace(REQUEST, evaluate=True, plan=plan), 3)), 0.0))
        device.download()
        command = device.trainer.given[-1]
        assert (command.evaluate, command.make_model) == (True, True)
        assert device.usage.spent(0.0).rounds == 3  # the owner's daily limits count it
        evaluation = Evaluation(REQUEST.model.digest, 0.5, 20, 0.25)
        device.performer.note_outcome(Evaluated(command.key, evaluation, model_follows=True))
        device.perform(device.job.handle(ModelEvaluated(command.key, evaluation), 2.0))
        assert device.performer.owes_model
        models.stage(b"finished", describe(3, b"finished", task=KEY.task, run=KEY.run))
        device.model_made()
        present = models.current(KEY.task)
        assert present is not None
        assert (present / MODEL_FILE).read_bytes() == b"finished"
        assert (device.performer.owes_model, list((tmp_path / "spool").iterdir())) == (False, [])

    def test_next_training_drops_it(self, tmp_path):
        device, models = self.commit_second(tmp_path)
        device.ask(3)
        device.download()
        assert [one.key.round for one in device.trainer.given] == [1, 2, 3]
        assert (device.performer.owes_model, models.current(KEY.task)) == (False, None)

    def test_restart_makes_it(self, tmp_path):
        self.commit_second(tmp_path)
        again = Device(tmp_path, ModelStore(tmp_path / "models", 2, every_s=1000.0))
        again.take_up_spooled()
        assert isinstance(again.trainer.given[-1], MakeModel)

    def test_training_process_that_cannot_be_started_for_it_costs_no_later_round(self, tmp_path, monkeypatch):
        device, _ = self.commit_second(tmp_path)

        def refuse(command: MakeModel) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(device.trainer, "make_model", refuse)
        device.performer.tick(device.performer.next_deadline() or 0.0)
        assert (device.performer.making_model, device.performer.owes_model) == (False, False)
        device.ask(3)
        device.download()
        assert [one.key.round for one in device.trainer.given] == [1, 2, 3]

    def test_restart_offers_the_update_of_the_next_round_whose_training_dropped_it(self, tmp_path):
        device, _ = self.commit_second(tmp_path)
        device.ask(3)
        device.download()
        third = update(b"t" * 350)
        (tmp_path / "spool" / "update.bin").write_bytes(b"t" * 350)
        device.perform(device.job.handle(UpdateTrained(replace(KEY, round=3), third), 2.0))
        again = Device(tmp_path, ModelStore(tmp_path / "models", 2, every_s=1000.0))
        again.take_up_spooled()
        assert [body.manifest for body in again.perform(again.job.tick(3.0)) if isinstance(body, Offer)] == [third]


class TestPersonalModelInTheMaking:
    """The update is sent while the training process makes the model; `committed` may arrive before or after the model."""

    COMMITTED = envelope_of(Committed(update(UPDATE).digest))

    def upload(self, directory: Path, *, staged: bool = False) -> tuple[Device, ModelStore]:
        """A device whose update was offered and whose model is being made, or is already `staged`."""
        models = ModelStore(directory / "models", 2)
        device = Device(directory, models)
        device.upload()
        device.perform([SpoolUpdate(KEY, update(UPDATE), REQUEST)])
        device.performer.note_outcome(Trained(KEY, update(UPDATE), report(), model_follows=True))
        if staged:
            self.stage(models)
        return device, models

    @staticmethod
    def stage(models: ModelStore) -> None:
        """The training process has made the model."""
        models.stage(b"trained", describe(KEY.round, b"trained", task=KEY.task, run=KEY.run))

    def test_committed_first_model_is_published_when_it_is_made(self, tmp_path):
        device, models = self.upload(tmp_path)
        device.perform(device.job.handle(MessageReceived(self.COMMITTED), 1.0))
        assert (device.job.state, device.performer.owes_model) == (JobState.IDLE, True)
        self.stage(models)
        assert models.current(KEY.task) is None
        device.model_made()
        assert models.current(KEY.task) is not None
        assert not list((tmp_path / "spool").iterdir())

    def test_made_first_model_is_published_when_its_update_is_committed(self, tmp_path):
        device, models = self.upload(tmp_path, staged=True)
        device.model_made()
        assert models.current(KEY.task) is None
        device.perform(device.job.handle(MessageReceived(self.COMMITTED), 1.0))
        assert models.current(KEY.task) is not None

    def test_refused_update_gives_no_model_although_one_is_made(self, tmp_path):
        device, models = self.upload(tmp_path, staged=True)
        device.perform(device.job.handle(MessageReceived(envelope_of(Cancel("late"))), 1.0))
        device.model_made()
        assert models.current(KEY.task) is None

    def test_next_training_waits_for_the_model_of_the_round_before(self, tmp_path):
        """Training would discard the staged model; the download does not wait, and a pause meanwhile stays in force."""
        device, models = self.upload(tmp_path)
        device.perform(device.job.handle(MessageReceived(self.COMMITTED), 1.0))
        device.ask(2)
        device.download()
        assert (device.job.state, device.trainer.given) == (JobState.TRAINING, [])
        self.stage(models)
        device.model_made()
        assert models.current(KEY.task) is not None
        assert [one.key.round for one in device.trainer.given] == [2]

    def test_next_training_that_was_cancelled_meanwhile_never_begins(self, tmp_path):
        device, _ = self.upload(tmp_path)
        device.perform(device.job.handle(MessageReceived(self.COMMITTED), 1.0))
        device.ask(2)
        device.download()
        device.perform(device.job.handle(MessageReceived(envelope_of(Cancel("late"), 2)), 2.0))
        assert (tmp_path / "spool" / "update.bin").exists()
        device.model_made()
        assert device.trainer.given == []

    def test_killed_after_committed_makes_and_publishes_it_after_the_restart(self, tmp_path):
        """The update is not offered again: the round may be long over."""
        device, models = self.upload(tmp_path)
        device.perform(device.job.handle(MessageReceived(self.COMMITTED), 1.0))
        again = Device(tmp_path, models)
        again.take_up_spooled()
        assert (again.job.state, again.performer.owes_model) == (JobState.IDLE, True)
        [make] = again.trainer.given
        assert (make.command.key, make.manifest) == (KEY, update(UPDATE))
        self.stage(models)
        again.model_made()
        assert models.current(KEY.task) is not None
        assert not list((tmp_path / "spool").iterdir())

    def test_killed_before_committed_makes_it_while_the_update_is_offered_again(self, tmp_path):
        _, models = self.upload(tmp_path)
        again = Device(tmp_path, models)
        again.take_up_spooled()
        assert (again.job.state, len(again.trainer.given)) == (JobState.UPLOADING, 1)
        self.stage(models)
        third = Device(tmp_path, models)
        third.take_up_spooled()
        assert (third.job.state, third.trainer.given) == (JobState.UPLOADING, [])

    def test_models_copied_without_their_link_keep_no_waiting_update_from_being_offered(self, tmp_path):
        _, models = self.upload(tmp_path)
        (tmp_path / "models" / KEY.task / "current").mkdir(parents=True)
        again = Device(tmp_path, models)
        again.take_up_spooled()
        assert (again.job.state, len(again.trainer.given)) == (JobState.UPLOADING, 1)

    @pytest.mark.parametrize(
        ("staged", "change"),
        [
            (True, lambda update, models: update.write_bytes(b"?")),
            (True, lambda update, models: update.unlink()),
            (False, lambda update, models: update.write_bytes(b"?")),
            (True, lambda update, models: models.publish(KEY.task, KEY.run, KEY.round)),
        ],
        ids=["staged, update damaged", "staged, update gone", "not staged, update damaged", "published"],
    )
    def test_restart_after_committed_owes_no_model(self, tmp_path, staged, change):
        """The staged model is whole, and the coordinator has the update."""
        device, models = self.upload(tmp_path, staged=staged)
        device.perform(device.job.handle(MessageReceived(self.COMMITTED), 1.0))
        change(tmp_path / "spool" / "update.bin", models)
        again = Device(tmp_path, models)
        again.take_up_spooled()
        assert (again.performer.owes_model, again.trainer.given) == (False, [])
        assert (models.current(KEY.task) is not None) == staged
        assert not list((tmp_path / "spool").iterdir())


HELD = Held(VERSIONS[1].digest, VERSIONS[1].schema, "fp32+zstd", 250)


class Listening(Wire):
    """A link that records its subscriptions."""

    def __init__(self) -> None:
        super().__init__()
        self.filters: set[str] = set()

    def subscribe(self, *filters: str) -> None:
        self.filters.update(filters)

    def unsubscribe(self, *filters: str) -> None:
        self.filters.difference_update(filters)


class NotingTrainer:
    """A training process that only records its commands."""

    def __init__(self) -> None:
        self.commands: list[TrainCommand] = []

    def train(self, command: TrainCommand) -> None:
        self.commands.append(command)

    def cancel(self) -> None:
        """No training is in progress."""


class DeltaDevice:
    """An agent's effect runner, in a directory with version 1 of the model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.start()
        self.held = ModelCache(directory / HELD_DIRECTORY)
        self.held.write(HELD, BLOBS[1])

    def start(self) -> None:
        self.wire, self.trainer, self.job = Listening(), NotingTrainer(), Job(max_blob_bytes=10_000)
        self.hands = performer_of(self.directory, self.wire, self.trainer)

    def ask(self, request: WorkRequest | None = None) -> None:
        self.perform(ask_holding(self.job, self.hands.held_version, request))

    def arrive(self, *blobs: bytes) -> None:
        for blob in blobs:
            for index in range(model(blob).chunk_count):
                self.perform(self.job.handle(ChunkReceived(cut(blob, model(blob), index)), 12.0))

    def perform(self, effects: list[Effect]) -> None:
        drive_job(self.job, effects, self.hands, lambda: 12.0)

    @property
    def downloads(self) -> set[str]:
        return {path.stem for path in (self.directory / "downloads").iterdir()}


@pytest.fixture
def delta_device(tmp_path):
    return DeltaDevice(tmp_path)


def filters(*manifests) -> set[str]:
    """Topic filters for the chunks of these manifests."""
    return {topics.model_chunks_filter("lab", one.digest) for one in manifests}


def test_listens_for_the_steps_from_what_is_held_and_trains_on_them(delta_device):
    delta_device.ask()
    assert delta_device.wire.filters == filters(*STEPS[1:])
    delta_device.arrive(*STEP_BLOBS[1:])
    assert delta_device.wire.filters == set()
    [command] = delta_device.trainer.commands
    assert (command.held, command.blob, command.base) == (VERSIONS[1].digest, None, VERSIONS[-1].digest)
    assert [step.delta for step in command.steps] == list(DELTAS[1:])
    assert [bytes_of(step.blob) for step in command.steps] == list(STEP_BLOBS[1:])
    assert command.hold
    delta_device.perform(delta_device.job.handle(MessageReceived(envelope_of(Cancel("late"))), 13.0))
    assert delta_device.downloads == set()


def test_small_download_is_in_memory_and_survives_a_pause(delta_device):
    """Nothing is written to disk, and after a pause only the missing step is requested."""
    delta_device.ask()
    delta_device.arrive(STEP_BLOBS[1])
    assert delta_device.downloads == set()
    delta_device.perform(delta_device.job.handle(OwnerPaused(Condition.BUSY), 0.0))
    delta_device.perform(delta_device.job.handle(OwnerResumed(), 0.0))
    delta_device.arrive(STEP_BLOBS[2])
    [command] = delta_device.trainer.commands
    assert [bytes_of(step.blob) for step in command.steps] == list(STEP_BLOBS[1:])
    assert delta_device.downloads == set()


@pytest.mark.usefixtures("downloads_on_disk")
def test_finds_what_had_come_before_a_reboot(delta_device):
    delta_device.ask()
    delta_device.arrive(STEP_BLOBS[1])
    delta_device.start()
    delta_device.ask()
    assert delta_device.trainer.commands == []
    delta_device.arrive(STEP_BLOBS[2])
    assert len(delta_device.trainer.commands) == 1


def test_downloads_nothing_where_the_model_is_held(delta_device):
    delta_device.held.write(replace(HELD, version=VERSIONS[-1].digest), BLOBS[-1])
    delta_device.ask()
    [command] = delta_device.trainer.commands
    assert (command.held, command.steps) == (VERSIONS[-1].digest, ())
    assert (delta_device.wire.filters, delta_device.downloads) == (set(), set())


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"torn")], ids=["gone", "torn"])
def test_takes_the_whole_model_where_nothing_is_held(delta_device, spoil):
    spoil(delta_device.held.path)
    delta_device.ask()
    assert delta_device.wire.filters == filters(VERSIONS[-1])
    delta_device.arrive(BLOBS[-1])
    [command] = delta_device.trainer.commands
    assert (command.held, bytes_of(command.blob)) == ("", BLOBS[-1])


def test_takes_the_whole_model_after_steps_that_led_nowhere(delta_device, caplog):
    delta_device.ask()
    delta_device.arrive(*STEP_BLOBS[1:])
    delta_device.perform(delta_device.job.handle(TrainingFailed(KEY, FailReason.DOWNLOAD, "no way to it"), 20.0))
    assert "no way to it; downloading the whole model" in caplog.text
    assert delta_device.hands.held_version == ""
    assert delta_device.wire.filters == filters(VERSIONS[-1])
    delta_device.arrive(BLOBS[-1])
    assert [command.held for command in delta_device.trainer.commands] == [VERSIONS[1].digest, ""]
    assert delta_device.job.state is JobState.TRAINING


@pytest.mark.usefixtures("downloads_on_disk")
def test_takes_the_whole_model_where_the_disk_spoilt_a_step(delta_device, caplog):
    delta_device.ask()
    delta_device.arrive(STEP_BLOBS[1])
    path = delta_device.directory / "downloads" / f"{STEPS[1].digest}.part"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    delta_device.arrive(STEP_BLOBS[2])
    assert delta_device.trainer.commands == []
    assert "what was downloaded is damaged" in caplog.text
    assert delta_device.wire.filters == filters(VERSIONS[-1])
    assert delta_device.hands.held_version == VERSIONS[1].digest


@pytest.mark.parametrize(
    ("request_", "hold"),
    [
        (delta_request(), True),
        (replace(delta_request(), deltas=(), encoding="delta-int8"), True),
        (replace(delta_request(), deltas=()), False),
    ],
    ids=["steps now", "steps later", "no steps"],
)
def test_holds_a_model_where_steps_are_to_be_expected(delta_device, request_, hold):
    delta_device.held.forget()
    delta_device.ask(request_)
    delta_device.arrive(BLOBS[-1])
    assert delta_device.trainer.commands[0].hold is hold


def test_model_in_memory_of_the_training_process_is_the_held_one_until_the_process_ends(delta_device):
    on_disk = delta_device.hands.held_version
    assert on_disk
    delta_device.hands.model_held(VERSIONS[-1].digest)
    assert delta_device.hands.held_version == VERSIONS[-1].digest
    delta_device.hands.model_held("")
    assert delta_device.hands.held_version == on_disk


def test_update_stays_in_the_spool_until_it_is_committed(device):
    """A grant, chunks and acknowledgements prove nothing: a device that restarts before `committed` offers it again."""
    waiting(device)
    manifest, known = update(UPDATE), UpdateSpool(device.directory / "spool").load()
    assert known is not None
    offers: list[Body] = [
        Grant(manifest.digest, 2, b"\x00"),
        Ack(manifest.digest, b"\x03"),
        Ack(manifest.digest, b"\x0f"),
    ]
    for at, body in enumerate((*offers, RetryAfter(manifest.digest, 1.0), Grant(manifest.digest, 4, b"\x00"))):
        device.perform(device.job.handle(MessageReceived(envelope_of(body)), 1.0 + at))
        assert UpdateSpool(device.directory / "spool").load() == known, body
    again = Device(device.directory)
    again.take_up_spooled()
    assert again.job.state is JobState.UPLOADING
    device.perform(device.job.handle(MessageReceived(envelope_of(Committed(manifest.digest))), 9.0))
    assert UpdateSpool(device.directory / "spool").load() is None


def test_each_effect_has_a_performer(tmp_path):
    performers = PlayedDevice(tmp_path, None).performer.performers
    assert performers.keys() == set(get_args(Effect))
