"""What a leader does after its session has ended: it leads again only with the lock, and in the epoch that it began."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.storage import leadership as module
from fedpatch.coordinator.storage.lead_by_broker_reach import BrokerReach
from fedpatch.coordinator.storage.leadership import Leadership
from fedpatch.shared.errors import LeadershipLost


def leader(epoch: int = 3) -> tuple[Leadership, Any]:
    """A leader whose session has ended, and its next session."""
    made = Leadership.__new__(Leadership)
    session = SimpleNamespace(execute=lambda *_: SimpleNamespace(scalar=lambda: True))
    known: dict[str, Any] = {"_url": "postgresql://here/fleet", "_fleet": "lab", "epoch": epoch, "_session": session}
    known |= {"_closing": threading.Event(), "_lost": None, "_reach": BrokerReach("lab"), "led_by": (epoch, "")}
    for name, value in known.items():
        setattr(made, name, value)
    return made, session


def server(monkeypatch: pytest.MonkeyPatch, epochs: list[int], *, free: bool) -> None:
    """The server's answers: the epochs that it knows, one a question, and whether the lock is free."""
    monkeypatch.setattr(
        module, "known_leader", lambda _session, _fleet: (epochs.pop(0) if len(epochs) > 1 else epochs[0], "x")
    )
    monkeypatch.setattr(module, "lock", lambda _session, _fleet: free)


def test_leader_that_gets_its_lock_again_in_its_epoch_goes_on(monkeypatch):
    made, session = leader()
    server(monkeypatch, [3], free=True)
    made._take_again(session)


@pytest.mark.parametrize(
    ("epochs", "free"), [([3], False), ([4], True), ([3, 4], True)], ids=["locked", "newer epoch", "newer epoch since"]
)
def test_leader_without_the_lock_or_with_a_successor_leads_no_more(monkeypatch, epochs, free):
    made, session = leader()
    server(monkeypatch, epochs, free=free)
    with pytest.raises(LeadershipLost):
        made._take_again(session)


@pytest.mark.parametrize("free", [True, False])
def test_standby_leads_only_with_the_lock(monkeypatch, free):
    made, _ = leader(epoch=0)
    server(monkeypatch, [3], free=free)
    assert made._take() is free
