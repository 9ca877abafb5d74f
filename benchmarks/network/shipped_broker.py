"""A mosquitto on a free port, with the limits of broker_config/mosquitto.conf: the broker that we recommend.

It has no certificates and access rules: the benchmarks measure rounds, not cryptography.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpatch.shared.errors import FedpatchError

SHIPPED = Path(__file__).resolve().parents[2] / "broker_config" / "mosquitto.conf"
LIMITS = (
    "set_tcp_nodelay",
    "max_packet_size",
    "max_queued_messages",
    "max_queued_bytes",
    "queue_qos0_messages",
    "memory_limit",
    "max_keepalive",
    "autosave_interval",
)
PATIENCE_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Broker:
    """URL and process of a broker."""

    url: str
    pid: int


@contextmanager
def shipped_broker(
    folder: Path, *, host: str = "127.0.0.1", changes: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """Run a broker with its files in `folder`; `changes` replace shipped options ("" leaves one out)."""
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise FedpatchError("mosquitto is not installed; on Debian: apt install mosquitto")
    port = _free_port(host)
    config, log = folder / "mosquitto.conf", folder / "mosquitto.log"
    options = {**shipped_limits(), **(changes or {})}
    lines = [f"listener {port} {host}", "user root", "allow_anonymous true", "persistence true", "log_dest stderr"]
    lines += [f"persistence_location {folder}/", *(f"{name} {value}" for name, value in options.items() if value)]
    config.write_text("\n".join(lines) + "\n")
    _allow_many_files()
    with log.open("wb") as out:
        process = subprocess.Popen([program, "-c", str(config)], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        _wait(process, host, port, log)
        yield Broker(f"mqtt://{host}:{port}", process.pid)
    finally:
        process.terminate()
        process.wait()


def shipped_limits() -> dict[str, str]:
    """Return the options of the shipped file that limit the broker's memory and speed."""
    pairs = (line.split(maxsplit=1) for line in SHIPPED.read_text("utf-8").splitlines() if line[:1].isalpha())
    return {pair[0]: pair[1] for pair in pairs if pair[0] in LIMITS}


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _allow_many_files() -> None:
    """Raise the limit of open files, which children inherit: each client takes a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _wait(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise FedpatchError(f"mosquitto did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(_POLL_S)
