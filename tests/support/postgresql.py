"""A PostgreSQL server of a test's own, on a Unix socket in a temporary folder."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from fedpatch.coordinator.storage.database.opening import URL_FILE
from tests.support.listing import PausableServer

ROLE = "fedpatch"
_SETTINGS = ("listen_addresses=", "shared_buffers=16MB", "max_connections=40", "jit=off", "logging_collector=off")


def binary(name: str) -> str | None:
    """Path of a program of PostgreSQL 15 or later, which Debian leaves out of PATH; None without it."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


class PostgresServer(PausableServer):
    """A server that `kill` ends like a crash, and that `start` starts again with its written data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._user = next(one for one in ("postgres", "nobody") if _is_user(one)) if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = itertools.count()
        if self._user:
            shutil.chown(folder, self._user)
        words = ("--no-sync", "--auth=trust", f"--username={ROLE}", "--encoding=UTF8", "--locale=C")
        self._run("initdb", *words, f"--pgdata={folder / 'data'}")

    def url(self, schema: str | None = None, role: str = ROLE) -> str:
        """URL of the database, with a schema of its own for the tables: a new one if none is given."""
        if schema is None:
            schema = f"state_{next(self._schemas)}"
            with self.session() as session:
                session.execute(f"CREATE SCHEMA {schema}".encode())
        return f"postgresql://{role}@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def state(self, directory: Path) -> Path:
        """Make a state directory whose registry is in this server; return the path that its file would have."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / URL_FILE).write_text(self.url())
        return directory / "registry.sqlite3"

    @contextmanager
    def session(self, url: str | None = None) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        """Open a session on the server, as any client does."""
        with psycopg.connect(url or f"postgresql://{ROLE}@/postgres?host={self.folder}", autocommit=True) as session:
            yield session

    def start(self) -> None:
        """Start the server and wait until it answers."""
        words = [str(binary("postgres")), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        words += [word for one in _SETTINGS for word in ("-c", one)]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(words, stdout=log, stderr=log, user=self._user, extra_groups=self._groups())
        log.close()
        give_up_at = time.monotonic() + 60.0
        while not self._answers():
            assert time.monotonic() < give_up_at and self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL the server; its children end with it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server, even if clients are connected."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with self.session() as session:
                session.execute(b"SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _groups(self) -> list[str] | None:
        return [] if self._user else None

    def _run(self, name: str, *words: str) -> None:
        subprocess.run(
            [str(binary(name)), *words], user=self._user, extra_groups=self._groups(), check=True, capture_output=True
        )


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server within a `with`; the test is skipped where PostgreSQL is absent, but not in CI."""
    if binary("postgres") is None:
        if os.environ.get("CI"):
            pytest.fail("no PostgreSQL here (on Debian: apt install postgresql)")
        pytest.skip("no PostgreSQL here (on Debian: apt install postgresql)")
    with tempfile.TemporaryDirectory(prefix="fedpatch-pg-") as folder:
        server = PostgresServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()
