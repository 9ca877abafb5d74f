"""A machine of which little is known; that a busy one answers late makes no fact unknown here."""

from __future__ import annotations

import pytest

from device_agent.conditions import bounded, network_manager, observe, programs
from tests.device_agent.conditions.scenes import Scene

PATIENCE_S = 90.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Tests of what hangs set limits of their own."""
    monkeypatch.setattr(bounded, "QUICK_S", PATIENCE_S)
    monkeypatch.setattr(observe, "SOURCE_LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(programs, "LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(network_manager, "LIMIT_S", PATIENCE_S)


@pytest.fixture
def scene(tmp_path) -> Scene:
    """Four CPUs, memory, a load; no sensors, no cards."""
    return Scene(tmp_path)
