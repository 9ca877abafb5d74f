"""The broker of a demo: amqtt in a process of its own (amqtt_server.py).

A thread in the coordinator's process is half as fast (measured with ten clients that send chunks of 96 KiB).
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from fedpatch.shared.app.files import import_root
from fedpatch.shared.errors import BrokerError, UsageError

HOST = "127.0.0.1"
READY = b"ready\n"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


class EmbeddedBroker:
    """Starts and stops the broker. Port 0 takes a free port. It has no access control, so it listens on this machine only.

    `server` is the module of its process, with arguments.
    """

    def __init__(self, port: int, server: Sequence[str] = ("fedpatch.coordinator.demo.amqtt_server",)) -> None:
        if importlib.util.find_spec("amqtt") is None:
            raise UsageError("the built-in broker is not installed; run: pip install 'fedpatch[demo]'")
        self.port = port
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of the broker; with port 0 known only after `start`."""
        return f"mqtt://{HOST}:{self.port}"

    def start(self) -> None:
        """Take the port and wait until the broker answers; BrokerError if it does not."""
        try:
            listener = socket.create_server((HOST, self.port), backlog=128)
        except OSError as error:
            raise BrokerError(
                f"port {self.port} of {HOST} cannot be used ({error.strerror}); choose another port, or use the "
                f"broker that runs there: {self.url}"
            ) from None
        with listener:
            self.port = listener.getsockname()[1]
            self._process = _spawn(listener, self._server)
        if not _answered(self._process):
            self.stop()
            raise BrokerError("the built-in broker did not start; its error is above")

    def stop(self) -> None:
        """Stop the broker and wait for its end; retained messages are lost."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _spawn(listener: socket.socket, server: Sequence[str]) -> subprocess.Popen[bytes]:
    # The child inherits the listening socket, so its port is known here and a client may connect at once. It has a session of
    # its own: Ctrl-C reaches all processes of the terminal's session, but the parent must still disconnect from the broker.
    roots = [str(import_root()), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *server, "--fd", str(listener.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[listener.fileno()],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
    )


def _answered(process: subprocess.Popen[bytes]) -> bool:
    stdout = process.stdout
    assert stdout is not None
    # A child that hangs is killed, which ends the read.
    watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        return stdout.readline() == READY
    finally:
        watchdog.cancel()
        watchdog.join()
