"""The built-in broker's own process: amqtt serves an inherited socket until stdin ends. Started by broker.py.

amqtt 0.12 is good enough for a demonstration on one machine. Tests found these faults, which are corrected here, before amqtt
gets a connection:

- It supports MQTT 3.1.1 only, and after a CONNECT of MQTT 5 with properties it waits for bytes that never come. Such a client
  gets the answer that the standard requires, and connects again with 3.1.1.
- A client that connects again while its old connection is open shares one session with it, and gets nothing once the old
  connection has ended. So the old connection is closed and every session starts clean. That loses nothing: amqtt stores nothing
  for an anonymous client that is offline.
- It leaves a connection open that it cannot set up. Such a connection is closed, and the client tries again.

These faults remain:

- It sends to each new client the retained messages of *every* client's subscriptions; a link drops messages of other
  subscriptions.
- It has no limit of packet size, no queue limit and no access rules, and keeps nothing over a restart. After five seconds it
  drops a message that a subscriber has not acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import sys
from dataclasses import dataclass

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType

READY = b"ready\n"
CONNECT_TIMEOUT_S = 10.0

_MQTT_3_1_1 = 4
_CLEAN_SESSION = 0x02
_CONNACK_WRONG_VERSION = b"\x20\x02\x00\x01"


@dataclass(frozen=True)
class _Connect:
    """The start of a CONNECT: bytes for the broker, protocol level and client id."""

    head: bytes
    level: int
    client_id: bytes = b""


class _Replayed(StreamReaderAdapter):  # type: ignore[misc] # amqtt has no types
    """A reader that first returns the bytes that were already read."""

    def __init__(self, reader: asyncio.StreamReader, head: bytes) -> None:
        super().__init__(reader)
        self._head = head

    async def read(self, n: int = -1) -> bytes:
        part, self._head = self._head[:n], self._head[n:]
        rest = n - len(part)
        return part + (await super().read(rest) if rest else b"")


class _Server:
    """Passes connections on to the broker, one for each client id."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._writers: dict[bytes, asyncio.StreamWriter] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                connect = await asyncio.wait_for(_read_connect(reader), CONNECT_TIMEOUT_S)
            except (asyncio.IncompleteReadError, TimeoutError, OSError):
                return
            if connect.level != _MQTT_3_1_1:
                writer.write(_CONNACK_WRONG_VERSION)
                return
            if old := self._writers.get(connect.client_id):
                old.close()
            self._writers[connect.client_id] = writer
            try:
                adapted = (_Replayed(reader, connect.head), StreamWriterAdapter(writer))
                await self._broker.external_connected(*adapted, "default")
            finally:
                if self._writers.get(connect.client_id) is writer:
                    del self._writers[connect.client_id]


async def _read_connect(reader: asyncio.StreamReader) -> _Connect:
    head = await reader.readexactly(2)
    while head[-1] & 0x80 and len(head) < 5:
        head += await reader.readexactly(1)
    name = await _read_text(reader)
    level = (await reader.readexactly(1))[0]
    head += name + bytes([level])
    if level != _MQTT_3_1_1:
        return _Connect(head, level)
    flags, *keepalive = await reader.readexactly(3)
    client_id = await _read_text(reader)
    return _Connect(head + bytes([flags | _CLEAN_SESSION, *keepalive]) + client_id, level, client_id)


async def _read_text(reader: asyncio.StreamReader) -> bytes:
    """Return a text with the two bytes of its length before it."""
    size = await reader.readexactly(2)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


def main() -> None:
    """Serve until stdin ends, which also happens when the parent dies."""
    parser = argparse.ArgumentParser(description="the built-in broker's process")
    parser.add_argument("--fd", type=int, required=True, help="a listening socket, inherited")
    listener = socket.socket(fileno=parser.parse_args().fd)
    # amqtt's warnings about single connections are left out: their clients log the end of the connection.
    logging.disable(logging.ERROR)
    asyncio.run(serve(listener, {}))


async def serve(listener: socket.socket, plugins: dict[str, dict[str, object]]) -> None:
    """Serve clients until stdin ends, with more of amqtt's `plugins`: the settings of each by its import path."""
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}, **plugins}
    broker = Broker(BrokerConfig(listeners={"default": ListenerConfig(type=ListenerType.EXTERNAL)}, plugins=plugins))
    await broker.start()
    server = await asyncio.start_server(_Server(broker).connected, sock=listener)
    with contextlib.suppress(BrokenPipeError):  # the parent is gone, and so stdin is at its end
        os.write(sys.stdout.fileno(), READY)
    await _end_of_stdin()
    server.close()
    await broker.shutdown()


async def _end_of_stdin() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    main()
