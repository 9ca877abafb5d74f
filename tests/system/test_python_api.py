"""Runs from Python with real agents: several at once in one process, their events, cancellation and resume."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fedpatch
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

pytestmark = [pytest.mark.system, pytest.mark.broker]

NAMES = ("one", "two")


def terms(broker: Mosquitto, directory: Path, name: str, rounds: int) -> dict[str, Any]:
    own = {"broker": broker.url, "fleet": name, "state_dir": str(directory / f"state-{name}"), "metrics": "none"}
    return {**own, "task": REFERENCE, "rounds": rounds, "wait_s": 150.0, "independent_every": 0}


def test_two_runs_of_one_process_are_read_cancelled_and_resumed(tmp_path):
    with Mosquitto() as broker, ExitStack() as stack:
        for name in NAMES:
            fleet = stack.enter_context(Fleet(broker.url, tmp_path / name, name=name))
            fleet.start("pi-0", REFERENCE, "n=30,test=30,seed=0")
        jobs = [fedpatch.start_run(**terms(broker, tmp_path, name, 2)) for name in NAMES]
        for job in jobs:
            events = [event for event in job if not isinstance(event, fedpatch.RunMessage)]
            assert [type(event) for event in events if isinstance(event, fedpatch.RoundEnded)] == [
                fedpatch.RoundEnded
            ] * 2
            assert [event.record for event in events if isinstance(event, fedpatch.RoundEnded)] == list(
                job.result().rounds
            )
            assert job.result().stopped_because == "max_rounds"

        async def cancelled() -> fedpatch.RunSummary:
            job = fedpatch.start_run(**terms(broker, tmp_path, "one", 100_000))
            async for event in job:
                if isinstance(event, fedpatch.RoundEnded):
                    job.cancel()
            return await job

        ended = asyncio.run(cancelled())
        assert ended.stopped_because == "interrupted"
        last = len(ended.rounds)
        client = fedpatch.Client(tmp_path / "state-one")
        resumed = client.resume(rounds=last + 1, progress=False)
        assert (resumed.run, resumed.stopped_because) == (ended.run, "max_rounds")
        assert len(resumed.rounds) == last + 1
        assert client.show().rounds == list(resumed.rounds)
        measured = client.evaluate(progress=False)
        assert (measured.outcome, measured.measured, set(measured.user_accuracies)) == ("evaluated", 1, {"pi-0"})
        assert measured.user_accuracy == pytest.approx(measured.user_accuracies["pi-0"], abs=1e-4)
        assert client.show().rounds == [*resumed.rounds, measured]
        assert client.run_info().status == "finished"
        again = fedpatch.run(**terms(broker, tmp_path, "two", 2), unless_done=True)
        assert again.run == jobs[1].result().run


def test_settings_that_are_wrong_are_named_before_a_job_starts():
    with pytest.raises(fedpatch.ConfigError, match="did you mean rounds"):
        fedpatch.start_run(round=3)
