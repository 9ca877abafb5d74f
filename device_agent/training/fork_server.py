"""A server that forks training processes from one process that has torch loaded.

    python -P -m fedpatch.device_agent.training.fork_server FD

It is for many agents on one machine, such as those of `fedpatch demo`: torch is imported once instead of once for each
device, and its pages are shared. A single agent on a device does not benefit from it.

`FD` is a listening Unix socket. An agent connects, and sends one byte with three file descriptors: standard input, output and
error of its training process (`ForkedProcess` of device_agent.runtime.training_launch). The server sends the process id, and
the exit code once the process ended, each as four bytes. The server ends with its own standard input.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import socket
import socketserver
import struct
import sys
from typing import cast

from fedpatch.device_agent.training import training_process
from fedpatch.shared.tasks.deferred_imports import defer_imports

_PRELOADED = ["fedpatch.device_agent.training.local_update", "fedpatch.device_agent.training.model_export"]

WORD = struct.Struct("!i")
"""A process id, or an exit code: negative for a signal."""


class TrainingHandler(socketserver.BaseRequestHandler):
    """Serves one connection, in a process of its own: forks the training process and waits for its end."""

    def handle(self) -> None:
        """Fork one training process."""
        _, streams, _, _ = socket.recv_fds(self.request, 1, 3)
        if len(streams) != 3:
            return
        pid = os.fork()
        if pid == 0:
            self._train(streams)
        for stream in streams:
            os.close(stream)
        self.request.sendall(WORD.pack(pid))
        _, status = os.waitpid(pid, 0)
        self.request.sendall(WORD.pack(os.waitstatus_to_exitcode(status)))

    def _train(self, streams: list[int]) -> None:
        code = 1
        try:
            cast(ForkServer, self.server).socket.close()
            self.request.close()
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
                os.close(stream)
            code = training_process.main()
        finally:
            os._exit(code)  # the handlers of the server must not run in the copy


class ForkServer(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Accepts connections on a socket that exists already, until standard input ends.

    Args:
        listener: File descriptor of the listening socket.
    """

    max_children = 10_000
    block_on_close = False

    def __init__(self, listener: int) -> None:
        super().__init__("", TrainingHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=listener)

    def service_actions(self) -> None:
        """End the server once its standard input is closed; called twice a second."""
        super().service_actions()
        if select.select([0], [], [], 0)[0] and not os.read(0, 4096):
            raise SystemExit(0)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore an agent that went away."""


def main() -> None:
    """Import the modules that every training process needs, then serve."""
    defer_imports()
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collector must not write to pages that the processes share
    ForkServer(int(sys.argv[1])).serve_forever()


if __name__ == "__main__":
    main()
