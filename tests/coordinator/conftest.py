"""Fixtures of several tests of the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.blobs.blob_store import BlobStore, open_blobs
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from tests.coordinator.masked_fleets import Clock
from tests.support.postgresql import PostgresServer, postgres_server


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """A prepared run: FedAvg of the whole digits model."""
    return prepare(RunSettings(strategy="fedavg", private="none"))


@pytest.fixture(params=["files", pytest.param("s3", marks=pytest.mark.medium)])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """The blob store of a run, in a directory and in an object store."""
    url = request.getfixturevalue("s3") if request.param == "s3" else None
    return open_blobs(url, tmp_path / "runs" / "r-1")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a process; each state directory has its own tables on this server."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.medium)])
def engine(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    """A function that gives a directory a registry in SQLite or PostgreSQL, and returns the path that a SQLite file has."""
    if request.param == "sqlite":
        return lambda directory: directory / REGISTRY_FILE
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.state


@pytest.fixture
def registry(tmp_path: Path, engine: Callable[[Path], Path]) -> Iterator[Registry]:
    with Registry(engine(tmp_path)) as opened:
        yield opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of coordinator and devices."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock
