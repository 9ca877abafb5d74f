"""Counts the bytes of connections to a broker, both ways, outside the process that makes them."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.brokers import HOST


class Meter:
    """Forwards connections to a broker within the `with`, and counts their bytes both ways.

    The end of the `with` waits for the end of the connections.
    """

    def __init__(self, port: int) -> None:
        self.up = self.down = 0
        self._broker_port = port
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._serve)
        self._connections: list[threading.Thread] = []

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for thread in (self._thread, *self._connections):
            thread.join()

    def _serve(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                connection = threading.Thread(target=self._forward, args=(near,))
                self._connections.append(connection)
                connection.start()

    def _forward(self, near: socket.socket) -> None:
        with near, socket.create_connection((HOST, self._broker_port)) as far:
            back = threading.Thread(target=self._pass, args=(far, near, "down"))
            back.start()
            self._pass(near, far, "up")
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                with self._counting:
                    setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
