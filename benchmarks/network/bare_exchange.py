"""Exchanges a round's bytes with paho and msgpack alone: a lower bound of the cost of a round with these libraries.

    python -m benchmarks.network.bare_exchange server URL PART_BYTES COUNT SHAPES [FOLDER]     plays a round for each line
    python -m benchmarks.network.bare_exchange devices URL PART_BYTES FIRST COUNT

The server publishes a model once, every device answers with as many bytes, the server adds them up in float64 and divides.
QoS 1, TCP_NODELAY, messages cut into parts that paho reads fastest. Nothing is checked, stored, acknowledged end to end or
written to a disk; with FOLDER each update is hashed and written to a file there (fsync) before the next is handled.
SHAPES is JSON: the shapes of the model's tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgpack
import numpy as np
import paho.mqtt.client as mqtt
import typer
from paho.mqtt.enums import CallbackAPIVersion

from fedpatch.shared.mqtt.url import parse_broker_url

TOPIC = "bare"


class Parts:
    """A partly received message: each part begins with its index and the number of parts."""

    def __init__(self) -> None:
        self._parts: dict[int, bytes] = {}

    def take(self, payload: bytes) -> bytes | None:
        """Add a part; return the whole message after its last part, else None."""
        index, count = int.from_bytes(payload[:4], "little"), int.from_bytes(payload[4:8], "little")
        self._parts[index] = payload[8:]
        if len(self._parts) < count:
            return None
        whole = b"".join(self._parts[number] for number in range(count))
        self._parts.clear()
        return whole


def cut(message: bytes, part_bytes: int) -> list[bytes]:
    """Return the parts of a message as they travel."""
    count = max(1, -(-len(message) // part_bytes))
    head = count.to_bytes(4, "little")
    starts = range(0, count * part_bytes, part_bytes)
    return [
        number.to_bytes(4, "little") + head + message[start : start + part_bytes] for number, start in enumerate(starts)
    ]


def connect(url: str, name: str, subscribe: str, on_message: Callable[[str, bytes], None]) -> mqtt.Client:
    """Return a client with a thread of paho, subscribed already."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
    client.max_queued_messages_set(0)
    subscribed = threading.Event()

    def opened(_client: mqtt.Client, _data: object, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connected(client: mqtt.Client, *_: object) -> None:
        client.subscribe(subscribe, 1)

    client.on_socket_open = opened
    client.on_connect = connected
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _client, _data, message: on_message(message.topic, bytes(message.payload))
    broker = parse_broker_url(url)
    client.connect(broker.host, broker.port, keepalive=600)
    client.loop_start()
    subscribed.wait(60.0)
    return client


def serve(url: str, part_bytes: int, count: int, shapes: dict[str, list[int]], folder: Path | None) -> None:
    """Run rounds until stdin ends."""
    inbox: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
    client = connect(url, "bare-server", f"{TOPIC}/up/+", lambda topic, payload: inbox.put((topic, payload)))
    model: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    typer.echo(json.dumps("ready"))
    while line := sys.stdin.readline():
        began_s = time.process_time()
        for _ in range(int(line)):
            model = _play(client, inbox, part_bytes, count, model, folder)
        bytes_up = count * 4 * sum(map(math.prod, shapes.values()))
        typer.echo(json.dumps({"cpu_s": time.process_time() - began_s, "bytes_up": bytes_up}))


def _play(
    client: mqtt.Client,
    inbox: SimpleQueue[tuple[str, bytes]],
    part_bytes: int,
    count: int,
    model: dict[str, Any],
    folder: Path | None,
) -> dict[str, Any]:
    packed = msgpack.packb({name: tensor.tobytes() for name, tensor in model.items()})
    for part in cut(packed, part_bytes):
        client.publish(f"{TOPIC}/down", part, qos=1)
    sums = {name: np.zeros(tensor.shape, np.float64) for name, tensor in model.items()}
    under_way: dict[str, Parts] = {}
    left = count
    while left:
        topic, payload = inbox.get()
        whole = under_way.setdefault(topic, Parts()).take(payload)
        if whole is not None:
            left -= 1
            if folder is not None:
                _write(folder / topic.rpartition("/")[2], whole)
            for name, raw in msgpack.unpackb(whole).items():
                sums[name] += np.frombuffer(raw, np.float32).reshape(sums[name].shape)
    return {name: (total / count).astype(np.float32) for name, total in sums.items()}


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(hashlib.sha256(content).digest())
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def answer_as_devices(url: str, part_bytes: int, first: int, count: int) -> None:
    """Run devices that send back their model, until stdin ends."""
    for number in range(first, first + count):
        _Device(url, f"device-{number:05d}", part_bytes)
    typer.echo(json.dumps("ready"))
    while sys.stdin.readline():
        pass
    os._exit(0)


class _Device:
    def __init__(self, url: str, name: str, part_bytes: int) -> None:
        self._topic = f"{TOPIC}/up/{name}"
        self._part_bytes = part_bytes
        self._parts = Parts()
        self._client = connect(url, name, f"{TOPIC}/down", self._on_message)

    def _on_message(self, _topic: str, payload: bytes) -> None:
        whole = self._parts.take(payload)
        if whole is not None:
            for part in cut(msgpack.packb(msgpack.unpackb(whole)), self._part_bytes):
                self._client.publish(self._topic, part, qos=1)


def main() -> None:
    """Run as a server or as devices."""
    role, url, part_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "server":
        folder = Path(sys.argv[6]) if len(sys.argv) > 6 else None
        serve(url, part_bytes, int(sys.argv[4]), json.loads(sys.argv[5]), folder)
    else:
        answer_as_devices(url, part_bytes, int(sys.argv[4]), int(sys.argv[5]))
    os._exit(0)


if __name__ == "__main__":
    main()
