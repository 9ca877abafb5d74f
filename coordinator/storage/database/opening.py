"""Opens the registry of a state directory: its SQLite file, or the PostgreSQL database that the directory names.

    registry.url    one line, the database's URL without a password; without this file the registry is registry.sqlite3

`fedpatch run --state URL` writes this file, so that all other commands find the runs by the state directory alone.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.database.sqlite_file import SqliteDatabase
from fedpatch.coordinator.storage.database.transactions import Database
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.shared.app.files import refusals_of, refuse_broken_link, remedy_of, write_atomic
from fedpatch.shared.config.database_url import database_problem
from fedpatch.shared.errors import UsageError

if TYPE_CHECKING:
    from fedpatch.coordinator.storage.database.postgresql import PostgresDatabase

URL_FILE = "registry.url"


def url_of(path: Path) -> str | None:
    """Return the URL of the database that has the registry in place of the SQLite file `path`; None without one.

    Raises:
        UsageError: The file with the URL cannot be read, or has no URL of a database.
    """
    file = path.with_name(URL_FILE)
    try:
        url = file.read_text("utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        remedy = remedy_of(error, file, "write the database's URL into it")
        raise UsageError(f"{file}: cannot be read: {error.strerror}; {remedy}") from None
    except UnicodeError:
        raise UsageError(f"{file}: cannot be read: not UTF-8; write the database's URL into it") from None
    if problem := database_problem(url, insecure=True):
        raise UsageError(f"{file}: {problem}")
    return url


def choose_database(path: Path, url: str | None) -> None:
    """Keep the registry of a state directory in a PostgreSQL database from now on.

    Args:
        path: Path that the registry would have as a SQLite file. Nothing is written if its directory does not exist.
        url: URL of the database; None leaves all as it is.

    Raises:
        UsageError: The directory has its runs elsewhere, or psycopg is not installed.
        StateError: The database cannot be reached or written; then the directory keeps its choice.
    """
    if url is None or url == _present(path, url):
        return
    examine_database(path, url)
    if path.parent.is_dir():
        with refusals_of(path.parent):
            write_atomic(path.with_name(URL_FILE), f"{url}\n".encode())


def examine_database(path: Path, url: str | None) -> bool | None:
    """Check that a coordinator could keep the registry of a state directory in its database; change nothing.

    Args:
        path: Path that the registry has, or would have, as a SQLite file.
        url: URL of the database that was asked for; None: the one that the directory has.

    Returns:
        Whether the database has tables; None without a database.

    Raises:
        UsageError: The directory has its runs elsewhere, or psycopg is not installed.
        StateError: The database cannot be reached or written.
    """
    known = _present(path, url)
    if known is None and url is None:
        return None
    with closing(_postgres(path, url or known or "", readonly=True)) as database:
        database.check()
        return database.has_tables


def _present(path: Path, url: str | None) -> str | None:
    """Return the URL of the database that has the registry, None without one; raise UsageError where `url` is another one."""
    known = url_of(path)
    if url is None or url == known:
        return known
    if known is not None:
        remedy = f"use that one, or another --state-dir. If the database has moved, change {path.with_name(URL_FILE)}"
        raise UsageError(f"{path.parent}: its runs are in {known}, not in {url}; {remedy}")
    if path.is_file() or copy_of(path).is_file():
        raise UsageError(f"{path.parent}: its runs are in {path.name}, not in {url}; use another --state-dir")
    return None


def open_database(path: Path, *, readonly: bool = False, patient: bool = False) -> Database:
    """Open the database of a registry; see SqliteDatabase and PostgresDatabase.

    Args:
        path: Path that the registry has, or would have, as a SQLite file.
        readonly: Change nothing.
        patient: Retry for a while if the PostgreSQL database cannot be reached.

    Raises:
        UsageError: There is no registry, with `readonly`.
        StateError: It cannot be used.
    """
    url = url_of(path)
    if url is not None:
        return _postgres(path, url, readonly=readonly, patient=patient)
    if readonly:
        must_exist(path)
    with refusals_of(path):
        refuse_broken_link(path)
    return SqliteDatabase(path, readonly=readonly)


def exists(path: Path) -> bool:
    """Return whether there is a registry at `path`, a copy to replace it, runs to rebuild it from, or the URL of a database."""
    found = (path, copy_of(path), path.with_name(URL_FILE))
    return any(one.is_file() for one in found) or bool(journals(path.parent))


def must_exist(path: Path) -> None:
    """Raise UsageError unless `exists` is true."""
    if not exists(path):
        with refusals_of(path.parent):
            refuse_broken_link(path.parent)
            refuse_broken_link(path)
        raise UsageError(f"no runs in {path.parent} ({path.name} is not there); say where they are with --state-dir")


def _postgres(path: Path, url: str, *, readonly: bool, patient: bool = False) -> PostgresDatabase:
    from fedpatch.coordinator.storage.database.postgresql import PostgresDatabase

    return PostgresDatabase(path, url, readonly=readonly, patient=patient)
