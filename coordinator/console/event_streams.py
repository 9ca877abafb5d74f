"""Server-sent events: one endless response per page, with limits for number, memory and waiting time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedpatch.coordinator.console.snapshot import Cursor, Snapshot, events_since

MAX_STREAMS = 100
"""Open streams at most; a further page gets a response to retry later."""
BEAT_S = 15.0
"""Seconds until a comment keeps an idle stream open and shows that its page is still there."""
PATIENCE_S = 20.0
"""Time in which a page must read the sent data; otherwise its stream ends."""

_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class EventStreams:
    """All open streams and the newest snapshot. All methods run in one event loop, except `publish_from_thread`.

    Args:
        patience_s: Seconds in which a page must read.
    """

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self.snapshot = Snapshot()
        self.count = 0
        self._patience_s = patience_s
        self._changed = asyncio.Event()
        self._closed = False
        # Pages with the same cursor get the same bytes.
        self._made: dict[Cursor, tuple[bytes, Cursor]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Take the running event loop as the one of the streams."""
        self._loop = asyncio.get_running_loop()

    def publish_from_thread(self, snapshot: Snapshot) -> None:
        """Hand a new snapshot to the event loop. Callable from any thread; ignored once the loop has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.publish, snapshot)

    def publish(self, snapshot: Snapshot) -> None:
        """Wake all streams with a new snapshot."""
        self.snapshot = snapshot
        self._made.clear()
        self._wake()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._wake()

    @property
    def full(self) -> bool:
        """True if there is no place for another stream."""
        return self.count >= MAX_STREAMS

    async def serve(self, receive: Receive, send: Send, allowed: Callable[[], bool]) -> None:
        """Send events until the page leaves, stops reading, or may no longer read.

        Args:
            receive: Of ASGI.
            send: Of ASGI.
            allowed: Whether the page may still read; called before each event.
        """
        self.count += 1
        left: asyncio.Future[Any] = asyncio.ensure_future(_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._send_events(send, left, allowed)
        except TimeoutError:
            pass  # a page that does not read; the server closes its connection
        finally:
            left.cancel()
            self.count -= 1

    async def _send_events(self, send: Send, left: asyncio.Future[Any], allowed: Callable[[], bool]) -> None:
        cursor = Cursor()
        while not (left.done() or self._closed) and allowed():
            changed = self._changed
            body, cursor = self._events(cursor)
            async with asyncio.timeout(self._patience_s):
                await send({"type": "http.response.body", "body": body or b": beat\n\n", "more_body": True})
            waiting: asyncio.Future[Any] = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait({waiting, left}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        async with asyncio.timeout(self._patience_s):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(self, cursor: Cursor) -> tuple[bytes, Cursor]:
        if cursor not in self._made:
            self._made[cursor] = events_since(cursor, self.snapshot)
        return self._made[cursor]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _left(receive: Receive) -> None:
    """Return when the page is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
