"""Real agents for tests: processes of `fedpatch-agent run`, each with its own state directory and log.

    with Fleet(mosquitto.url, tmp_path) as fleet:
        ann = fleet.start("ann", "digits", "shard:0/2")
        fleet.wait_ready()
        ...
        ann.kill()
        ann.restart()

An agent ends with the test's process in any case: it holds the reading end of a pipe that the kernel closes with that
process. The report of a failed test has the logs of all agents (tests/system/conftest.py), and the error of an agent's `wait`
has its log.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedpatch.coordinator.demo.devices import serve_forks
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.mqtt.url import parse_broker_url
from tests.support.listing import content, descriptors
from tests.support.paths import ROOT
from tests.system.commands import Command, wait_for

PATIENCE_S = 150.0
"""Enough to import torch on a very busy machine."""

_STOP_TIMEOUT_S = 60.0

Wrap = Callable[[Sequence[str]], list[str]]


def without_rights(command: Sequence[str]) -> list[str]:
    """Return the command of a process without capabilities, as a systemd service runs it; other users than root have none."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    return [*drop, *command]


open_fleets: list[Fleet] = []
"""Fleets whose `with` has not ended, for the report of a failed test."""


@functools.cache
def fork_server() -> Path:
    """Start the server that imports torch once for all training processes of this process's tests; return its socket."""
    until_exit = contextlib.ExitStack()
    atexit.register(until_exit.close)
    directory = until_exit.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-forks-"))
    return until_exit.enter_context(serve_forks(Path(directory)))


def forked_for(agent: int) -> list[int]:
    """Return the training processes that the fork server has forked for an agent: those with a pipe to it."""
    pipes = {one for one in descriptors(agent) if one.startswith("pipe:")}
    servers = [one.name for one in Path("/proc").glob("[0-9]*") if b"fork_server" in (content(one / "cmdline") or b"")]
    return [int(one) for one in servers if pipes.intersection(descriptors(one))]


class AgentProcess:
    """One device's agent. Its directory `state_dir` and its `log` outlast `kill`, `terminate` and `restart`."""

    def __init__(self, device: str, options: Sequence[str], directory: Path, wrap: Wrap = without_rights) -> None:
        self.device = device
        self._wrap = wrap
        self.state_dir = directory / device
        self._options = ["--device-id", device, "--state-dir", str(self.state_dir), *options]
        self._log = directory / f"{device}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the agent; `wait_ready` waits until it is ready."""
        assert not self.running, f"{self.device} runs already"
        command = [sys.executable, "-m", "fedpatch.device_agent", "run", "--until-stdin-closes", *self._options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDPATCH_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._wrap(command),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, patience_s: float = PATIENCE_S) -> None:
        """Return once the agent's present process is connected to the broker and has its data."""
        self.wait(lambda: self.status.get("connected") and self.status.get("tasks"), "is ready", patience_s)

    def wait(self, fits: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        wait_for(lambda: self.running, fits, lambda: f"{self.device} never: {what}; its log:\n{self.log}", patience_s)

    def terminate(self) -> int:
        """Send SIGTERM, as a service manager would, and wait; return the exit code, or minus the signal's number."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End the agent and its training process like a power cut: without disconnect and cleanup."""
        return self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill the agent if it still runs, and start it again in the same state directory."""
        self.kill()
        self.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the agent, which is also the id of its session and process group."""
        assert self._process is not None
        return self._process.pid

    @property
    def patches(self) -> Path:
        return self.state_dir / "patches"

    @property
    def status(self) -> dict[str, Any]:
        """The last status that the present process wrote; empty until it has written one."""
        try:
            status = json.loads((self.state_dir / "status.json").read_bytes())
        except (FileNotFoundError, ValueError):  # ValueError: a power cut left an empty file
            return {}
        return dict(status) if self._process is not None and status["pid"] == self.pid else {}

    @property
    def log(self) -> str:
        """The log of all processes of this agent."""
        return self._log.read_text("utf-8", errors="replace") if self._log.exists() else ""

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        process = self._process
        if process.poll() is None:
            if how is signal.SIGKILL:
                # A power cut ends the training process at the same moment. Its parent is the agent or the fork server.
                os.killpg(process.pid, signal.SIGSTOP)
                while forked := forked_for(process.pid):
                    for one in forked:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(one, how)
                os.killpg(process.pid, how)
            else:
                process.send_signal(how)
        try:
            code = process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError(f"{self.device} did not end on {how.name}; its log:\n{self.log}") from None
        finally:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        return code


class Fleet:
    """The agents of one fleet at one broker, with all their files in `directory`; all end with the `with`.

    Args:
        broker: URL of the broker.
        directory: Holds the state directories and logs of the agents.
        name: Name of the fleet.
        wrap: Returns the command line to run, given that of an agent. By default agents have no rights of root.
        forked: A server that has torch loaded forks the training processes, as in `fedpatch demo`. False: each is a program and
            a child of its agent, as on a device; for tests that kill, trace or measure it by itself.
    """

    def __init__(
        self, broker: str, directory: Path, *, name: str = "demo", wrap: Wrap = without_rights, forked: bool = True
    ) -> None:
        self._wrap = wrap
        self._forks = ["--fork-server", str(fork_server())] if forked else []
        self.broker = broker
        self.name = name
        self.agents: dict[str, AgentProcess] = {}
        self._directory = directory

    @property
    def plain(self) -> list[str]:
        """The option that both sides need for a broker without TLS beyond loopback, such as on a host of the lab."""
        return ["--insecure"] if parse_broker_url(self.broker).exposed else []

    def start(
        self, device: str, task: str, data: str, admission: str = "always", options: Sequence[str] = ()
    ) -> AgentProcess:
        """Start an agent for `device`; `options` are further options of `fedpatch-agent run`."""
        settings = ["--broker", self.broker, "--fleet", self.name, "--task", task, "--data", data]
        settings += ["--admission", admission, "--reconnect-min-s", "0.2", "--reconnect-max-s", "1"]
        settings += [*self.plain, *self._forks]
        # The test's other processes must not starve the agents for which they wait.
        settings += ["--nice", "0", *options]
        self._directory.mkdir(parents=True, exist_ok=True)
        agent = self.agents[device] = AgentProcess(device, settings, self._directory, self._wrap)
        agent.start()
        return agent

    def coordinator(self, state_dir: Path, /, **terms: Any) -> Command:
        """`fedpatch run --json` for this fleet; `terms` are options with underscores (True: a flag), and `program`."""
        program = terms.pop("program", "fedpatch")
        given = {"broker": self.broker, "fleet": self.name, "state-dir": state_dir, **terms}
        options = [f"--{name.replace('_', '-')}{'' if value is True else f'={value}'}" for name, value in given.items()]
        return Command(program, "run", "--json", *self.plain, *options)

    def settings(self, state_dir: Path, task: str, **terms: Any) -> RunSettings:
        """Return settings of a coordinator in this process, with long waits for slow machines; `terms` override them."""
        given: dict[str, Any] = {"devices": len(self.agents), "recruit_deadline_s": 100.0, "grace_s": 100.0, **terms}
        return RunSettings(metrics=None, broker=self.broker, fleet=self.name, state_dir=state_dir, task=task, **given)

    def wait_ready(self, patience_s: float = PATIENCE_S) -> None:
        """Return once every agent is connected and has its data."""
        for agent in self.agents.values():
            agent.wait_ready(patience_s)

    def logs(self) -> Iterator[tuple[str, str]]:
        for device, agent in self.agents.items():
            yield device, agent.log

    def __enter__(self) -> Fleet:
        open_fleets.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        open_fleets.remove(self)
        for agent in self.agents.values():
            agent.kill()
