"""A machine with few sources; long time limits, so that slow answers of a busy machine do not make facts unknown."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.sensors import collect, commands, network_manager, timeouts
from tests.device_agent.sensors.scenes import Scene

PATIENCE_S = 90.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Long time limits; tests of hanging sources set their own."""
    monkeypatch.setattr(timeouts, "QUICK_S", PATIENCE_S)
    monkeypatch.setattr(collect, "SOURCE_LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(commands, "LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(network_manager, "LIMIT_S", PATIENCE_S)


@pytest.fixture
def scene(tmp_path) -> Scene:
    """Four CPUs, memory, a load; no sensors, no cards."""
    return Scene(tmp_path)
