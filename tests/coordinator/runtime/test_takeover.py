"""The way of a standby to the lead while PostgreSQL ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.runtime import run_or_resume
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.runtime.wait_for_lead import leading
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.leadership import Leadership
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import LeadershipGivenUp
from tests.support.brokers import Mosquitto
from tests.support.postgresql import PostgresServer, postgres_server

pytestmark = [pytest.mark.broker, pytest.mark.medium]


@pytest.fixture
def mortal() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def test_standby_that_takes_over_while_the_database_restarts_waits_for_it_and_leads(
    mortal: PostgresServer, tmp_path: Path, prepared: Prepared
):
    url = mortal.url()
    said: list[str] = []
    restart = threading.Thread(target=mortal.start)
    with Mosquitto() as broker, Leadership(url, "lab") as leader:
        leader.wait(print, threading.Event())

        def say(line: str) -> None:
            said.append(line)
            if line.endswith("waiting to take over"):
                leader.close()
            elif line.startswith("taking over") and restart.ident is None:
                mortal.kill()
                restart.start()

        view: Any = SimpleNamespace(say=say, show=print)
        settings = RunSettings(
            broker=broker.url, state=url, blobs=f"file://{tmp_path}/blobs", state_dir=tmp_path / "state", fleet="lab"
        )
        with leading(settings, view, replace(REAL, prepare=lambda _: prepared)) as (led, waited):
            assert (waited, led.leadership is not None) == (True, True)
            with Registry(tmp_path / "state" / REGISTRY_FILE, patient=True) as registry:
                registry.lead("lab", 1)
        restart.join()
    assert said[-1] == "leading fleet 'lab', epoch 1"


def test_leader_that_gives_up_waits_as_a_standby_and_starts_no_second_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    calls: list[tuple[bool, bool, bool]] = []

    @contextmanager
    def lead(_settings: object, _view: object, ports: Ports, *, again: bool) -> Iterator[tuple[Ports, bool]]:
        calls.append((again, False, False))
        yield ports, again

    def run(*_: object, new: bool, unless_done: bool, **__: object) -> str:
        again = calls.pop()[0]
        calls.append((again, new, unless_done))
        if not again:
            raise LeadershipGivenUp("no broker")
        return "summary"

    monkeypatch.setattr(run_or_resume, "leading", lead)
    monkeypatch.setattr(run_or_resume, "_run_or_resume_now", run)
    view: Any = SimpleNamespace(say=lambda _line: None)
    settings = RunSettings(state_dir=tmp_path / "state", standby=True)
    found: Any = run_or_resume.run_or_resume(settings, view, new=True)
    assert (found, calls) == ("summary", [(False, True, False), (True, False, True)])
