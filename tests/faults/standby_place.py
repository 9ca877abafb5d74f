"""The scene of runs with standbys: two broker nodes behind haproxy, PostgreSQL, an object store, a device, and a relay.

The relay's site has its own broker and two devices. All are processes, used for one run after the other.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.broker.cluster.pair import Pair
from tests.faults.scene import Scene, start_fleet
from tests.faults.slow_task import REFERENCE
from tests.support.postgresql import PostgresServer
from tests.support.s3_server import S3Server
from tests.system.commands import Command
from tests.system.fleet import AgentProcess, Fleet

RELAY = "relay"
DEVICE = "ann"
SITE = ("bob", "cat")
HUB = (DEVICE, RELAY)
ROUNDS = 14
PAUSE_MS = 500
"""In each of the three or four steps of a round's training."""
TERMS: dict[str, Any] = {"rejoin_s": 100, "grace_s": 100, "recruit_deadline_s": 100, "deadline_s": 200, "quorum": 1}


class Relay:
    """The relay of the site, over all its restarts."""

    def __init__(self, directory: Path, up: str, down: str, options: list[str]) -> None:
        self._state_dir = directory / RELAY
        self._log = directory / f"{RELAY}.log"
        words = ["--up", up, "--up-fleet", "demo", "--device-id", RELAY, "--down", down, "--fleet", "demo"]
        words += ["--task", REFERENCE, "--state-dir", str(self._state_dir), "--norm-bound", "off"]
        words += ["--max-num-examples", "off", "--min-cohort", str(len(SITE)), "--quorum", "1", "--grace-s", "100"]
        self._words = [*words, "--recruit-deadline-s", "100", "--chunk-kib", "8", *options]
        self._open = contextlib.ExitStack()
        self.command: Command | None = None

    def start(self) -> None:
        self.command = self._open.enter_context(Command("fedpatch-relay", "run", *self._words))

    def start_as_new(self) -> None:
        """Start it without the rounds of earlier runs, and wait until it has seen its site's devices."""
        self.kill()
        shutil.rmtree(self._state_dir, ignore_errors=True)
        self.start()
        assert self.command is not None
        self.command.wait_err(f"site: {len(SITE)} devices")

    def must_run(self) -> None:
        """Raise RuntimeError if the relay has ended by itself."""
        if self.command is not None and not self.command.running:
            raise RuntimeError(f"the relay has ended with {self.command.done().code}")

    def freeze(self) -> None:
        assert self.command is not None
        self.command.freeze()

    def thaw(self) -> None:
        assert self.command is not None
        self.command.thaw()

    def kill(self) -> None:
        if self.command is not None:
            self.command.kill()
            with self._log.open("a") as log:
                log.write(f"--- killed\n{self.command.err}")
        self._open.close()
        self.command = None


class Place:
    """The scene, as a context manager; `model` has the bytes of each array of an undisturbed run's model."""

    def __init__(
        self, directory: Path, server: PostgresServer, store: S3Server, blobs: str, rounds: int = ROUNDS
    ) -> None:
        self.directory, self.server, self.store, self.blobs, self.rounds = directory, server, store, blobs, rounds
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Place:
        self.cluster = self._open.enter_context(Pair("demo", list(HUB)))
        site_broker, self.site, _ = start_fleet(self._open, self.directory / "site", SITE, PAUSE_MS)
        self.brokers = (self.cluster.a, self.cluster.b, site_broker)
        hub = Fleet(self.cluster.prefer_a, self.directory / "hub", forked=False)
        self.hub = self._open.enter_context(hub)
        Scene(hub, self.directory, HUB).start_agent(DEVICE, PAUSE_MS, self._login(DEVICE))
        self.relay = Relay(self.directory, self.cluster.prefer_b, site_broker.url, self._login(RELAY, "--up-"))
        self._open.callback(self.relay.kill)
        self.relay.start_as_new()
        hub.wait_ready()
        with self.begin(self.directory, self.cluster.prefer_b) as coordinator:
            done = coordinator.done()
        assert done.code == 0, done.err
        self.model = arrays(Path(done.document["model"]).read_bytes())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def agents(self) -> list[AgentProcess]:
        """Return the agents of the hub's device and of the site's devices."""
        return [*self.hub.agents.values(), *self.site.agents.values()]

    def begin(self, directory: Path, broker: str, **terms: object) -> Command:
        """Return a coordinator of the hub, with its state directory in `directory`."""
        login = dict(zip(("username", "password_file"), self._credentials("coordinator"), strict=True))
        scene = Scene(self.hub, directory, HUB)
        return scene.begin(self.rounds, {**TERMS, **login, "broker": broker, "max_members": len(SITE), **terms})

    def renew(self) -> None:
        """Start devices and relay without earlier state: epochs of a new database begin at 1."""
        for agent in self.agents:
            agent.kill()
            shutil.rmtree(agent.state_dir, ignore_errors=True)
            agent.start()
        self.relay.start_as_new()
        self.hub.wait_ready()
        self.site.wait_ready()

    def _login(self, user: str, prefix: str = "--") -> list[str]:
        name, file = self._credentials(user)
        return [f"{prefix}username", name, f"{prefix}password-file", str(file)]

    def _credentials(self, user: str) -> tuple[str, Path]:
        file = self.directory / f"{user}.password"
        if not file.exists():  # a coordinator may be reading it
            file.write_text(user)
            file.chmod(0o600)
        return f"{user}@localhost", file


def arrays(blob: bytes) -> dict[str, bytes]:
    """Return the bytes of a model's arrays by name."""
    with np.load(io.BytesIO(blob)) as model:
        return {name: array.tobytes() for name, array in model.items()}
