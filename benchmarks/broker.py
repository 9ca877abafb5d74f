"""A mosquitto of a benchmark's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shared.errors import FedpatchError

HOST = "127.0.0.1"
PATIENCE_S = 60.0

AS_SHIPPED = ("max_queued_messages 1000", "max_queued_bytes 67108864", "max_packet_size 1048576")
"""What broker_config/mosquitto.conf says of queues and packets."""
UNLIMITED = ("max_queued_messages 0", "max_queued_bytes 0")
"""Nothing is dropped, whatever it takes."""


@dataclass(frozen=True)
class Broker:
    """Where it listens, and its process."""

    url: str
    port: int
    pid: int


@contextmanager
def mosquitto(folder: Path, *options: str) -> Iterator[Broker]:
    """A broker whose files are in `folder`, without Nagle's delays; FedpatchError where there is no mosquitto."""
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise FedpatchError("mosquitto is not installed; on Debian: apt install mosquitto")
    folder.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    config = folder / "mosquitto.conf"
    # Started as root it would become another user, who may not read the folder.
    lines = [f"listener {port} {HOST}", "user root", "allow_anonymous true", "set_tcp_nodelay true", *options]
    config.write_text("".join(f"{line}\n" for line in lines))
    with running(folder / "mosquitto.log", [program, "-c", str(config)]) as process:
        _wait_for(port, process, folder / "mosquitto.log")
        yield Broker(f"mqtt://{HOST}:{port}", port, process.pid)


@contextmanager
def running(log: Path, line: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to the file `log`; it is asked to end when the block does."""
    with log.open("wb") as out:
        process = subprocess.Popen(line, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
            return
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise FedpatchError(f"mosquitto did not start: {log.read_text('utf-8', 'replace')[-500:]}")
        time.sleep(0.01)
