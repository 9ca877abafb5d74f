"""The server of a console: sockets, time limits of connections, and the threads and tasks around the application."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpatch.coordinator.console.app import Console
from fedpatch.coordinator.console.event_streams import EventStreams
from fedpatch.coordinator.console.feed import Feed
from fedpatch.coordinator.console.listen_terms import ConsoleTerms, token_of
from fedpatch.coordinator.console.logins import Access
from fedpatch.coordinator.console.run_starter import RunStarter
from fedpatch.shared.config.listen_address import Address
from fedpatch.shared.errors import UsageError

MAX_CONNECTIONS = 300
"""Connections at a time; further ones are closed at once."""
IDLE_S = 10.0
"""Time in which a connection must begin a request, and finish its head; then it is closed."""
_MAX_HEAD = 16 * 1024
_KEEP_ALIVE_S = 5
_GOODBYE_S = 1


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with limits that uvicorn lacks: the number of connections, and the time of one without a request.

    A closing connection whose peer does not read is aborted, so that its buffer is freed.
    """

    _watch: asyncio.TimerHandle | None = None
    _idle_looks = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch a connection; close it at once if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._watch = self.loop.call_later(IDLE_S / 2, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Abort a connection that was without a request, or about to close, at two looks in a row."""
        cycle: Any = self.cycle  # None before the first request
        idle = cycle is None or cycle.response_complete or self.transport.is_closing()
        self._idle_looks = self._idle_looks + 1 if idle else 0
        if self._idle_looks >= 2:
            self.transport.abort()
            return
        self._watch = self.loop.call_later(IDLE_S / 2, self._look)


class ConsoleServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: the program owns the signals."""

    def __init__(self, config: uvicorn.Config, streams: EventStreams) -> None:
        super().__init__(config)
        self._streams = streams
        self.on_start: Callable[[], None] = lambda: None

    def capture_signals(self) -> Any:
        """Leave the signals alone."""
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Attach the streams to the event loop and call `on_start`; then start as uvicorn does."""
        self._streams.attach()
        self.on_start()
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first: they never end by themselves."""
        self._streams.close()
        await super().shutdown(sockets=sockets)


def console_server(
    terms: ConsoleTerms, state_dir: Path | None, streams: EventStreams
) -> tuple[ConsoleServer, Path | None]:
    """Return the server of a console and the file with its token, if it has one.

    Args:
        state_dir: The state directory; None without one.

    Raises:
        UsageError: The terms would let others read or act, or a file is unusable.
        ConfigError: A file of `terms.begin` has wrong settings.
    """
    terms.check()
    context = terms.ssl_context()
    token, token_file = token_of(terms, state_dir)
    access = Access(
        token=token,
        read_needs_login=terms.read_needs_login,
        actions=terms.actions,
        secure=context is not None,
    )
    starter = RunStarter(state_dir, terms.begin) if state_dir is not None and terms.begin else None
    console = Console(state_dir, streams, access, terms.hosts, starter)
    config = uvicorn.Config(
        console.app,
        http=LimitedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GOODBYE_S,
        h11_max_incomplete_event_size=_MAX_HEAD,
    )
    config.load()
    config.ssl = context
    return ConsoleServer(config, streams), token_file


@contextmanager
def listening(address: Address) -> Iterator[tuple[socket.socket, Address]]:
    """Yield a socket that listens on `address`, and the address with its port. Raises UsageError where that is impossible."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address.host, address.port))
            sock.listen(128)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot listen on {address}: {why}; --listen names another HOST:PORT") from None
        yield sock, Address(address.host, sock.getsockname()[1])
    finally:
        sock.close()


def serve(
    terms: ConsoleTerms,
    state_dir: Path | None,
    make_feed: Callable[[EventStreams], Feed],
    ready: Callable[[str, Path | None], None],
    around: Callable[[Feed, Callable[[], None]], AbstractContextManager[None]],
    streams: EventStreams | None = None,
) -> None:
    """Serve a console until it is stopped.

    Args:
        state_dir: The state directory; None without one.
        make_feed: Makes the feed, whose snapshots go to the streams.
        ready: Called with the URL and the file of the token once the console listens.
        around: Gets the feed and a function that stops the server, callable from any thread; the console is served in its
            block.
        streams: The event streams; None: new ones with the defaults.

    Raises:
        UsageError: As `console_server` and `listening`.
    """
    streams = streams or EventStreams()
    server, token_file = console_server(terms, state_dir, streams)
    with listening(terms.listen) as (sock, address):
        feed = make_feed(streams)

        def stop() -> None:
            server.should_exit = True

        with around(feed, stop):
            ready(f"{'https' if terms.tls_cert else 'http'}://{address}/", token_file)
            server.on_start = feed.start
            try:
                asyncio.run(server.serve(sockets=[sock]))
            finally:
                feed.stop()


def ready_line(url: str, token_file: Path | None, *, actions: bool) -> str:
    """Return one JSON document that names a console."""
    return json.dumps({"url": url, "actions": actions, "token_file": None if token_file is None else str(token_file)})
