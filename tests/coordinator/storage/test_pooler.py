"""PostgreSQL behind a pooler that gives each transaction another session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from fedpatch.coordinator.storage.database.opening import choose_database, exists
from fedpatch.coordinator.storage.database.postgresql import PostgresDatabase
from fedpatch.coordinator.storage.leadership import Leadership
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
from fedpatch.shared.errors import StateError
from tests.support.pooler import pgbouncer, transaction_pooler
from tests.support.postgresql import ROLE, PostgresServer

_SETTINGS = (
    "default_transaction_read_only",
    "synchronous_commit",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "statement_timeout",
)


@pytest.fixture(params=[transaction_pooler, pgbouncer], ids=["one_session", "pgbouncer"])
def pooled(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[str]:
    """The URL of a pooler; its sessions must have the same settings afterwards."""
    with request.param(postgres.folder, ROLE) as url:
        before = _settings(url)
        yield url
        assert _settings(url) == before


def _settings(url: str) -> list[object]:
    with psycopg.connect(url, autocommit=True) as session:
        return [session.execute(f"SHOW {name}".encode()).fetchone() for name in _SETTINGS]


@pytest.mark.medium
def test_pooler_of_transactions_is_named_and_refused(pooled: str, tmp_path: Path):
    with pytest.raises(StateError, match=r"pool_mode = transaction.*use the address of the server itself"):
        PostgresDatabase(tmp_path / "registry.sqlite3", pooled)
    with pytest.raises(StateError, match=r"pool_mode = transaction.*use the address of the server itself"):
        Leadership(pooled, "kitchen")


@pytest.mark.medium
def test_state_directory_keeps_its_choice_where_a_pooler_is_refused(pooled: str, tmp_path: Path):
    with pytest.raises(StateError, match="pool_mode = transaction"):
        choose_database(tmp_path / REGISTRY_FILE, pooled)
    assert not exists(tmp_path / REGISTRY_FILE)


@pytest.mark.medium
def test_reader_behind_a_pooler_of_transactions_reads_without_a_setting_that_stays(pooled: str, tmp_path: Path):
    with closing(PostgresDatabase(tmp_path / "registry.sqlite3", pooled, readonly=True)) as database:
        for number in range(8):  # more than after which psycopg prepares a statement
            assert database.read(text(f"SELECT {number} AS number")) == [{"number": number}]
        with pytest.raises(StateError, match="it was opened to read"):
            database.change(lambda db: db.exec_driver_sql("CREATE TABLE of_a_reader (number integer)"))


@pytest.mark.medium
def test_server_itself_is_not_refused(postgres: PostgresServer, tmp_path: Path):
    PostgresDatabase(tmp_path / "registry.sqlite3", postgres.url()).close()
