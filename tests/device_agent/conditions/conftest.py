"""A busy machine answers late; that alone makes no fact unknown here."""

from __future__ import annotations

import pytest

from device_agent.conditions import bounded, network_manager, observe, programs

PATIENCE_S = 90.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Tests of what hangs set limits of their own."""
    monkeypatch.setattr(bounded, "QUICK_S", PATIENCE_S)
    monkeypatch.setattr(observe, "SOURCE_LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(programs, "LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(network_manager, "LIMIT_S", PATIENCE_S)
