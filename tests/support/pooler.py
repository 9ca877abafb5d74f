"""Poolers of transactions in front of PostgreSQL: Debian's PgBouncer with pool_mode = transaction, and one of one session."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import HOST, PATIENCE_S, free_port, listening

_PLAIN_ONLY = {80877103, 80877104}  # requests for TLS and GSSAPI
_READY, _KEY, _LAST_OF_SERVER, _LAST_OF_CLIENT = b"Z", b"K", b"Z", (b"Q", b"S")


class _Stream:
    """Messages of PostgreSQL's protocol 3 on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")

    def exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def message(self) -> tuple[bytes, bytes]:
        """Return kind and whole bytes of a message."""
        head = self.exactly(5)
        return head[:1], head + self.exactly(struct.unpack("!I", head[1:])[0] - 4)

    def first(self) -> int:
        """Return the code of a message without a kind, which begins a connection."""
        length, code = struct.unpack("!II", self.exactly(8))
        self.exactly(length - 8)
        return int(code)


class TransactionPooler:
    """The pooler; it ignores all parameters of a client's start, such as `options`."""

    def __init__(self, folder: Path, role: str, database: str = "postgres") -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(folder / ".s.PGSQL.5432"))
        self._server = _Stream(server)
        body = b"".join(word.encode() + b"\0" for word in ("user", role, "database", database)) + b"\0"
        server.sendall(struct.pack("!II", len(body) + 8, 196608) + body)
        self._greeting = b""
        kind = b""
        while kind != _READY:
            kind, data = self._server.message()
            self._greeting += b"" if kind == _KEY else data
        self._turn = threading.Lock()
        self._numbers = itertools.count(900_001)
        self._listener = socket.create_server((HOST, 0))
        self.url = f"postgresql://{role}@{HOST}:{self._listener.getsockname()[1]}/{database}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End the pooler and its session."""
        self._listener.close()
        self._server.sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(_Stream(client),), daemon=True).start()

    def _serve(self, client: _Stream) -> None:
        with contextlib.suppress(EOFError, OSError), client.sock:
            while client.first() in _PLAIN_ONLY:
                client.sock.sendall(b"N")
            key = _KEY + struct.pack("!III", 12, next(self._numbers), 0)
            client.sock.sendall(self._greeting[:-6] + key + self._greeting[-6:])
            while self._transaction(client):
                pass

    def _transaction(self, client: _Stream) -> bool:
        """Pass on the messages of one transaction; return whether the client stays."""
        kind, data = client.message()
        with self._turn:
            while kind != b"X":
                self._server.sock.sendall(data)
                if kind in _LAST_OF_CLIENT and self._answer(client) == b"I":
                    return True
                kind, data = client.message()
        return False

    def _answer(self, client: _Stream) -> bytes:
        """Pass on the answers; return the state of the transaction."""
        while True:
            kind, data = self._server.message()
            client.sock.sendall(data)
            if kind == _LAST_OF_SERVER:
                return data[5:]


@contextlib.contextmanager
def transaction_pooler(folder: Path, role: str) -> Iterator[str]:
    """The URL of a pooler in front of the server with its socket in `folder`, within a `with`."""
    pooler = TransactionPooler(folder, role)
    try:
        yield pooler.url
    finally:
        pooler.close()


@contextlib.contextmanager
def pgbouncer(folder: Path, role: str) -> Iterator[str]:
    """The URL of a PgBouncer in front of the server in `folder`, within a `with`; skips the test where it is missing."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (apt install pgbouncer)")
    port, config = free_port(), folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\npostgres = host={folder} dbname=postgres user={role}\n"
        f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nignore_startup_parameters = extra_float_digits,options\n"
    )
    owner = folder.stat()
    server = subprocess.Popen(
        [program, "-q", config],
        user=owner.st_uid if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        give_up_at = time.monotonic() + PATIENCE_S
        while not listening(port):
            assert time.monotonic() < give_up_at and server.poll() is None, "pgbouncer does not listen"
            time.sleep(0.01)
        yield f"postgresql://{role}@{HOST}:{port}/postgres"
    finally:
        server.kill()
        server.wait()
