"""Shared fixtures for tests of the device's processes."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.state import download_files
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def installed():
    """Find fedpatch from any directory, as if it were installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture
def downloads_on_disk(monkeypatch):
    """Treat every download as too large for memory."""
    monkeypatch.setattr(download_files, "MEMORY_BYTES", -1)
