"""What several tests of the coordinator begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.blobs.blob_store import BlobStore, open_blobs
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """FedAvg of the whole digits model."""
    return prepare(RunSettings(strategy="fedavg", private="none"))


@pytest.fixture(params=["files", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """The blob store of a run, in a directory and in an object store."""
    url = request.getfixturevalue("s3") if request.param == "s3" else None
    return open_blobs(url, tmp_path / "runs" / "r-1")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path / REGISTRY_FILE) as opened:
        yield opened
