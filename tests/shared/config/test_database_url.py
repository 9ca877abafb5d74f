"""URLs of databases: refused URLs, and errors without the password."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.database_url import database_problem
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError

LOCAL = "postgresql://fedpatch@localhost/fedpatch"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("registry.sqlite3", "is no URL such as postgresql://"),
        ("mysql://fedpatch@localhost/fedpatch", "is no URL such as postgresql://"),
        ("postgresql://fedpatch@localhost", "is no URL such as postgresql://"),
        ("postgresql://fedpatch@localhost:many/fedpatch", "is no URL such as postgresql://"),
        ("postgresql://fedpatch:hunter2@localhost/fedpatch", "must not stand in the URL"),
        (f"{LOCAL}?password=hunter2", "must not stand in the URL"),
        ("postgresql://fedpatch@db.local/fedpatch", r"db.local is another machine; add \?sslmode=verify-full"),
        ("postgresql://fedpatch@/fedpatch?host=db.local&sslmode=prefer", "db.local is another machine"),
        (f"{LOCAL}?hostaddr=203.0.113.5", "203.0.113.5 is another machine"),
        (f"{LOCAL}?host=203.0.113.5&host=localhost", "203.0.113.5 is another machine"),
        (f"{LOCAL}?host=localhost,db.local", "db.local is another machine"),
        (f"{LOCAL}?service=remote", "service remote is another machine"),
        ("postgresql://fedpatch@db.local/fedpatch?sslmode=disable&sslmode=require", "db.local is another machine"),
    ],
)
def test_unusable_url_is_reported_without_a_password(url: str, problem: str):
    with pytest.raises(ConfigError, match=problem) as raised:
        load(RunSettings, file=None, environ={}, flags={"state": url})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        LOCAL,
        "postgresql://fedpatch@[::1]:5433/fedpatch",
        "postgresql://fedpatch@127.0.0.2/fedpatch",
        "postgresql://fedpatch@/fedpatch?host=LOCALHOST",
        "postgresql://fedpatch@/fedpatch?host=/run/postgresql",
        "postgresql://fedpatch@db.local/fedpatch?sslmode=verify-full",
        "postgresql://fedpatch@/fedpatch?host=localhost,127.0.0.2&hostaddr=127.0.0.1",
        f"{LOCAL}?hostaddr=203.0.113.5&sslmode=verify-full",
    ],
)
def test_local_url_and_one_with_tls_are_permitted(url: str):
    assert load(RunSettings, file=None, environ={}, flags={"state": url}).state == url


def test_another_machine_without_tls_is_permitted_with_insecure():
    assert database_problem("postgresql://fedpatch@db.local/fedpatch", insecure=True) is None
