"""The devices of a demo: agents as processes on this machine, each with data and a state directory of its own.

They end with the demo in any case: each has the reading end of a pipe that the kernel closes when the demo ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpatch.shared.app.files import import_root
from fedpatch.shared.errors import BrokerError, FedpatchError, UsageError

PROGRAM = "fedpatch-agent"
POLL_S = 0.1
STOP_TIMEOUT_S = 30.0

_ERRORS: dict[int, type[FedpatchError]] = {UsageError.exit_code: UsageError, BrokerError.exit_code: BrokerError}
_LAST_LINES = 5


@dataclass(frozen=True)
class DemoDevice:
    """An agent process with its state directory and log."""

    name: str
    process: subprocess.Popen[bytes]
    state_dir: Path
    log: Path

    @property
    def ready(self) -> bool:
        """True if its status file shows a connection and loaded data."""
        status = self._status()
        return bool(status.get("connected") and status.get("tasks"))

    def why_ended(self) -> FedpatchError | None:
        """The error that ended the process, with its exit code; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        how = f"signal {-code}; is there enough memory?" if code < 0 else f"exit code {code}"
        text = f"{self.name} ended: {_last_words(self.log) or how} (its log: {self.log})"
        return _ERRORS.get(code, FedpatchError)(text)

    def _status(self) -> dict[str, Any]:
        try:
            status = json.loads((self.state_dir / "status.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return status if isinstance(status, dict) else {}


def device_names(count: int) -> list[str]:
    """Return `device-00`, `device-01`, ..., with the digits that the last one needs."""
    width = max(2, len(str(count - 1)))
    return [f"device-{index:0{width}}" for index in range(count)]


def start_device(name: str, options: Sequence[str], directory: Path) -> DemoDevice:
    """Start an agent in `directory`/`name`, in a session of its own: only the demo handles Ctrl-C."""
    state_dir, log = directory / name, directory / f"{name}.log"
    command = [sys.executable, "-P", "-m", "fedpatch.device_agent", "run", "--until-stdin-closes"]
    # The user of a demo is the owner, so power and network are not checked.
    command += ["--device-id", name, "--state-dir", str(state_dir), "--admission", "always", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(),
        )
    return DemoDevice(name, process, state_dir, log)


def wait_until_ready(devices: Sequence[DemoDevice], patience_s: float, report: Callable[[int], None]) -> None:
    """Wait until every device is ready.

    Args:
        patience_s: Longest time without a further device becoming ready.
        report: Called with the number of ready devices.

    Raises:
        FedpatchError: A device ended (then with its error), or no further device became ready in time.
    """
    waiting = list(devices)
    give_up_at = time.monotonic() + patience_s
    while waiting:
        for device in devices:
            if error := device.why_ended():
                raise error
        still = [device for device in waiting if not device.ready]
        if len(still) < len(waiting):
            give_up_at = time.monotonic() + patience_s
        elif time.monotonic() >= give_up_at:
            raise FedpatchError(
                f"{still[0].name} is not ready after {patience_s:g} s; see {still[0].log}, start fewer devices, or give "
                "them longer with --wait-s"
            )
        waiting = still
        if waiting:
            report(len(devices) - len(waiting))
            time.sleep(POLL_S)


def stop_devices(devices: Sequence[DemoDevice]) -> None:
    """Stop every agent: SIGTERM, then SIGKILL for it and the processes it started."""
    for device in devices:
        device.process.terminate()
    give_up_at = time.monotonic() + STOP_TIMEOUT_S
    for device in devices:
        try:
            device.process.wait(max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(device.process.pid, signal.SIGKILL)
            device.process.wait()
        if device.process.stdin is not None:
            with contextlib.suppress(OSError):
                device.process.stdin.close()


def _environment() -> dict[str, str]:
    """The environment without settings of an agent, so that all devices are alike."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDPATCH_AGENT_")}
    roots = [str(import_root()), kept.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, roots))}


@contextlib.contextmanager
def serve_forks(directory: Path) -> Iterator[Path]:
    """Start the server that imports torch once for all devices, and yield its socket.

    Agents may connect at once: their connections wait until the server has imported torch. An agent whose server failed starts
    its training process as a program.

    Args:
        directory: Holds the socket and the server's log.
    """
    with tempfile.TemporaryDirectory(prefix="fedpatch-demo-") as private, socket.socket(socket.AF_UNIX) as listener:
        path = Path(private) / "fork-server"
        listener.bind(str(path))
        listener.listen(4096)
        command = [sys.executable, "-P", "-m", "fedpatch.device_agent.training.fork_server", str(listener.fileno())]
        with (directory / "fork-server.log").open("wb") as output:
            server = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env=_environment(),
            )
        listener.close()  # a connection is refused once the server ended
        with server:
            try:
                yield path
            finally:
                server.kill()


def _last_words(log: Path) -> str:
    """The error that the agent printed, or the end of its log."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    mark = f"{PROGRAM}: "
    complaints = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return "\n".join(complaints or lines[-_LAST_LINES:])
