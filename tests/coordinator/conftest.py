"""What several tests of the coordinator begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """FedAvg of the whole digits model."""
    return prepare(RunSettings(strategy="fedavg", private="none"))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path / REGISTRY_FILE) as opened:
        yield opened
