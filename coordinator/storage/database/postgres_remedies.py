"""Remedies for errors of PostgreSQL, as the operator reads them."""

from __future__ import annotations

import re

from sqlalchemy.exc import SQLAlchemyError

_CONNECTIONS = "end other clients of the server, or raise its max_connections"
GRANT = "have its owner grant this user USAGE and CREATE on the schema, and ALL on its tables"
_OTHER_TABLES = (
    "its tables are gone or changed: restore a backup, or use an empty database and `fedpatch runs --rebuild`"
)
_NO_PATH = "check the network and firewalls between this machine and the server"
_IN_URL = "correct the options in the URL"
PRIMARY = "use the address of the primary server, or take default_transaction_read_only from this user and database"
_DAMAGED = "the server's files are damaged: see its log, and restore a backup"
_REMEDIES = {
    "42501": GRANT,
    "25006": f"it was opened to read, or the server is a standby: {PRIMARY}",
    "08P01": "if a pooler refuses this, use the address of the server itself",
    "53100": "make room on the server's disk",
    "53200": "give the server more memory, or lower its work_mem and max_connections",
    "53300": _CONNECTIONS,
    "58030": "check the server's disk and its log",
    "22P05": "make a database with the encoding UTF8 (createdb -T template0 -E UTF8)",
    "42P01": _OTHER_TABLES,
    "42703": _OTHER_TABLES,
    "55P03": "take lock_timeout from this user and database, or raise it",
    "57014": "take statement_timeout from this user and database, or raise it",
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}
# psycopg gives no code for a connection that the server refuses, only its words: patterns of these.
_REFUSALS = {
    "password authentication failed|no password supplied": "correct the password in ~/.pgpass (mode 0600) or PGPASSWORD",
    "Peer authentication failed": "name a host in the URL (USER@localhost), or run as the system user of this name",
    "Ident authentication failed": "let this user in with a password (scram-sha-256) in the server's pg_hba.conf",
    "is not permitted to log in": "let it log in (ALTER ROLE NAME LOGIN), or correct the user name in the URL",
    "permission denied for database": "have its owner grant this user CONNECT on the database",
    r"no pg_hba\.conf entry": "let this user and this address in with a line in the server's pg_hba.conf",
    "too many connections for": "raise the CONNECTION LIMIT of this database and user (ALTER DATABASE, ALTER ROLE)",
    "too many connections|too many clients|connection slots": _CONNECTIONS,
    "not currently accepting connections": "use another database in the URL: this one is a template",
    "no more connections": "end other clients of the pooler, or raise its max_client_conn",
    "unsupported startup parameter": "take `options` out of the URL, or let PgBouncer ignore it (ignore_startup_parameters)",
    "bouncer config error|no such database": "add the database to the pooler ([databases]), or correct its name in the URL",
    "database system is": "it is starting, stopping or recovering: repeat in a moment, and see the server's log",
    "certificate verify failed": "name the CA of the server's certificate in the URL (sslrootcert=FILE), and compare its "
    "dates with the clock here",
    "root certificate file": "name the CA of the server's certificate in the URL (sslrootcert=FILE)",
    "does not match host name": "use a host name of the server's certificate in the URL",
    "server does not support SSL": "turn TLS on in the server (ssl = on), which sslmode in the URL requires",
    "resolve host|translate host": "correct the host name in the URL, or its DNS entry",
    r'role ".*" does not exist': "make the user (createuser NAME), or correct the user name in the URL",
    r'database ".*" does not exist': "make the database (createdb NAME), or correct its name in the URL",
    "Connection refused": "start the server, and let it listen at this address (listen_addresses, port)",
    "No such file": "start the server, or correct the folder of its socket in the URL",
    "terminating connection": "start the server. Its log has the reason",
    "closed the connection": "start the server (its log has the reason), or correct the port: another program answers there",
    "fe80:.*Invalid argument": "name the interface of this address in the URL ([fe80::1%25eth0]), or use a host name",
    "invalid response|expected authentication request": "correct host and port in the URL: another program answers there",
    "invalid .* value|invalid connection option|unrecognized configuration parameter": _IN_URL,
    "certificate file|private key file": "correct sslcert, sslkey and sslrootcert in the URL",
    "session is read-only": PRIMARY,
    "timeout|No route to host|Network is unreachable": _NO_PATH,
}
UNREACHABLE = "make sure that the server runs and lets this user in (a password: ~/.pgpass or PGPASSWORD)"


def in_words(error: SQLAlchemyError) -> str:
    """Return the server's words on one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def remedy_of(error: SQLAlchemyError) -> str:
    """Return the remedy for an error of the server, by its code or else by its words."""
    words = in_words(error)
    code = code_of(error)
    known = _REMEDIES.get(code) or next((one for part, one in _REFUSALS.items() if re.search(part, words)), None)
    return known or (UNREACHABLE if not code else "see the server's log")


def code_of(error: SQLAlchemyError) -> str:
    """Return the SQLSTATE of an error; "" without one."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
