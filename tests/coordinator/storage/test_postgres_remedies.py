"""Remedies for errors of PostgreSQL, by the code of the server or its words."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from fedpatch.coordinator.storage.database.postgres_remedies import remedy_of
from fedpatch.shared.errors import problem_and_remedy


class _Refusal(Exception):
    def __init__(self, words: str, sqlstate: str | None = None) -> None:
        super().__init__(words)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        (_Refusal('FATAL:  password authentication failed for user "ann"'), "~/.pgpass"),
        (_Refusal('FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "ann"'), "pg_hba.conf"),
        (_Refusal("FATAL:  sorry, too many clients already"), "max_connections"),
        (_Refusal("FATAL:  the database system is starting up"), "repeat in a moment"),
        (_Refusal("SSL error: certificate verify failed"), "sslrootcert"),
        (_Refusal("connection timeout expired"), "firewalls"),
        (_Refusal("could not extend file", "53100"), "make room on the server's disk"),
        (_Refusal("invalid page in block 7", "XX001"), "restore a backup"),
        (_Refusal('FATAL:  Peer authentication failed for user "ann"'), "USER@localhost"),
        (_Refusal('FATAL:  Ident authentication failed for user "ann"'), "pg_hba.conf"),
        (_Refusal('FATAL:  role "ann" is not permitted to log in'), "LOGIN"),
        (_Refusal('FATAL:  permission denied for database "fleet"'), "CONNECT"),
        (_Refusal("FATAL: unsupported startup parameter: options"), "ignore_startup_parameters"),
        (_Refusal("FATAL: no more connections allowed (max_client_conn)"), "max_client_conn"),
        (_Refusal("FATAL: no such database: fleet"), "[databases]"),
        (_Refusal("received invalid response to SSL negotiation: H"), "another program answers there"),
        (_Refusal('certificate file "/nowhere/a.crt" does not exist'), "sslcert"),
        (_Refusal("session is read-only"), "the primary server"),
        (_Refusal("FATAL:  terminating connection due to administrator command"), "start the server"),
        (_Refusal("server closed the connection unexpectedly"), "start the server"),
        (_Refusal("server does not support SSL, but SSL was required"), "turn TLS on"),
        (_Refusal("connection to server failed: No route to host"), "firewalls"),
        (_Refusal("canceling statement due to statement timeout", "57014"), "take statement_timeout from this user"),
        (_Refusal("canceling statement due to lock timeout", "55P03"), "take lock_timeout from this user"),
        (_Refusal('FATAL: too many connections for database "fp"'), "CONNECTION LIMIT"),
        (_Refusal('FATAL: database "template0" is not currently accepting connections'), "use another database"),
        (_Refusal("server closed the connection unexpectedly"), "correct the port"),
        (_Refusal('connection to server at "fe80::1", port 5432 failed: Invalid argument'), "name the interface"),
        (_Refusal('character has no equivalent in encoding "LATIN1"', "22P05"), "UTF8"),
        (_Refusal("column runs.settings does not exist", "42703"), "restore a backup"),
        (_Refusal("an error without a remedy of its own", "99999"), "see the server's log"),
        (_Refusal("no answer that has a code"), "make sure that the server runs"),
    ],
)
def test_remedy_follows_from_the_code_of_the_server_or_its_words_and_is_one_part_of_the_message(refusal, remedy):
    found = remedy_of(OperationalError("SELECT 1", None, refusal))
    assert problem_and_remedy(f"the database cannot be used; {found}")[1] == found
    assert remedy in found
