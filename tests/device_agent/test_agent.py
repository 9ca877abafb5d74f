"""The agent's loop: it lives through what ends a round."""

from __future__ import annotations

import sys

import pytest

from device_agent.admission import Order
from device_agent.agent import Agent, Inbox, Stop
from device_agent.effects import JobKey
from device_agent.job import Job
from device_agent.performing import Identity, Performer
from device_agent.presence import StatusFile
from device_agent.trainer import Died, Trainer
from device_agent.training_channel import Ready, Setup, SetupFailed, TrainFailed, TrainProgress
from shared import topics
from shared.codec import encode
from shared.errors import DataError, UsageError
from shared.link import Connected, Received
from shared.messages import Accept, Failed, FailReason, JobPhase, Progress
from shared.transfer import cut, encode_chunk
from tests.device_agent.jobs import BLOB, REQUEST
from tests.device_agent.wire import Wire
from tests.specs import RUN, SCHEMA, TASK, model, said

READY = Ready(TASK, SCHEMA, 10)
DOWN = topics.down("lab", "pi")


def asked(round_number: int = 1, epoch: int = 1) -> list[Received]:
    """A work request and the chunks of its model."""
    digest = model().digest
    chunks = [encode_chunk(cut(BLOB, model(), index)) for index in range(3)]
    request = Received(DOWN, encode(said(REQUEST, round_number, epoch=epoch)), False)
    return [request, *(Received(topics.model_chunk("lab", digest, i), chunk, True) for i, chunk in enumerate(chunks))]


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Lets an agent see events until it is stopped; what it answers. Its training process never says a word."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    def play(*events) -> list:
        identity, wire, inbox, job = Identity.new("lab", "pi"), Wire(), Inbox(), Job(max_blob_bytes=10_000)
        trainer = Trainer(Setup("none", "", "", "", "pi"), inbox.put)
        performer = Performer(identity, job, link=wire, trainer=trainer, directory=tmp_path)
        status = StatusFile(tmp_path, {})
        order = Order(always=True)
        agent = Agent(identity, job, performer, link=wire, inbox=inbox, trainer=trainer, order=order, status=status)
        for event in (Connected("5", None, retain_available=True, session_present=False), *events, Stop(7)):
            inbox.put(event)
        assert agent.run() == 7
        return wire.up

    return play


@pytest.mark.parametrize("end", [SetupFailed("no memory for torch", 1), Died("ended by SIGKILL")], ids=str)
def test_a_training_process_that_fails_costs_the_round_and_not_the_agent(played, end):
    """The next round is taken, with another process."""
    assert played(READY, *asked(), end, *asked(2)) == [
        Accept(10),
        Progress(JobPhase.TRAINING, 0, 1),
        Failed(FailReason.TRAINING),
        Accept(10),
        Progress(JobPhase.TRAINING, 0, 1),
    ]


@pytest.mark.parametrize(
    ("end", "error"),
    [(SetupFailed("no such task", 2), UsageError), (SetupFailed("no data", 1), DataError), (Died("gone"), DataError)],
    ids=str,
)
def test_a_device_that_never_was_ready_has_nothing_to_live_for(played, end, error):
    """Its owner has to do something first."""
    with pytest.raises(error, match=r"no such task|no data|before it was ready"):
        played(end)


def test_news_of_the_same_round_from_an_earlier_epoch_are_passed_over(played):
    """The coordinator came back and asked again from another base; the old training is none of the new one's business."""
    old = JobKey(RUN, 1, 1, TASK)
    events = [TrainProgress(old, 3, 5), TrainFailed(old, FailReason.NOT_FINITE, "late")]
    answers = played(READY, *asked(), *asked(epoch=2), *events)
    assert answers == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)] * 2
