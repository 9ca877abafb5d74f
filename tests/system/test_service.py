"""The agent as a service: its notifications to systemd, its end, and its processes and writes while it is idle."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto
from tests.support.listing import children
from tests.system.fleet import AgentProcess, Fleet
from tests.system.held_task import REFERENCE, Hold
from tests.system.stage import DEVICES, Stage, wait_state

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

PATIENCE_S = 100.0
WATCHDOG_S = 0.4
POLL_S = 0.02


class Manager:
    """systemd's end of the notify socket; `received` has all messages. Like systemd, it always listens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def wait(self, fits: Callable[[], bool], what: str) -> None:
        """Return once `fits()` is true."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not fits():
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"systemd never received {what}, but: {self.received[-20:]}")
            time.sleep(POLL_S)

    def wait_status(self, text: str) -> None:
        """Return once `text` is the last status received."""
        self.wait(lambda: self.status == text, text)

    @property
    def status(self) -> str:
        """The status that `systemctl status` would show."""
        lines = [line for one in list(self.received) for line in one.splitlines() if line.startswith("STATUS=")]
        return lines[-1].removeprefix("STATUS=") if lines else ""

    def wait_alive(self, times: int = 3) -> None:
        """Return once the agent's loop has run `times` more turns."""
        enough = self.alive + times
        self.wait(lambda: self.alive >= enough, f"WATCHDOG=1 {times} times")

    @property
    def alive(self) -> int:
        """The number of watchdog notifications received."""
        return self.received.count("WATCHDOG=1")

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
            ours.sendto(b"", str(self.path))
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while message := self._socket.recv(4096):
            self.received.append(message.decode())


@pytest.fixture
def stage(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Stage]:
    """A stage where training processes are children of their agents, as on a device."""
    with Fleet(mosquitto.url, tmp_path, forked=False) as fleet:
        yield Stage(mosquitto, fleet, tmp_path)


@pytest.fixture
def manager(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """A manager that all agents started later notify."""
    manager = Manager(socket_folder / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
    yield manager
    manager.close()


def what_lies_in(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, time of change and size of all files and directories: they show any write, even of the same content."""
    stats = {str(path): path.stat() for path in (directory, *directory.rglob("*"))}
    return {path: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_agent_notifies_systemd_from_start_to_stop_in_training(stage: Stage, manager: Manager):
    """READY, each state, watchdog messages also in training, STOPPING; the training process ends too, files are whole."""
    stage.holds["ann"] = Hold(stage.directory / "ann.hold")
    ann = stage.fleet.start("ann", REFERENCE, f"{DEVICES['ann']};{stage.holds['ann'].path}")
    manager.wait(lambda: any(one.startswith("READY=1\n") for one in manager.received), "READY=1")
    ann.wait_ready()
    stage.hold("ann", round=2, step=2)
    with stage.begin(devices=1) as coordinator:
        stage.wait_held("ann", coordinator)
        wait_state(ann, "training")
        run = ann.status["run"]
        manager.wait_status(f"training, round 2 of run {run}")
        manager.wait_alive()
        before = stage.patch("ann")
        (training,) = children(ann.pid)
        assert ann.terminate() == 0
        assert _gone(training)
    manager.wait(lambda: "STOPPING=1\nSTATUS=stopping" in manager.received, "STOPPING=1")
    assert stage.patch("ann").batches_done == before.batches_done > 0
    assert not list(ann.state_dir.rglob("*.tmp"))


def test_agent_without_a_broker_is_ready_with_a_disconnected_status(manager: Manager, tmp_path: Path):
    with Fleet("mqtt://127.0.0.1:9", tmp_path, forked=False) as fleet:
        fleet.start("ann", "digits", "shard:0/10")
        manager.wait_status("idle; not connected to the broker")
        manager.wait_alive()
        assert manager.received[0] == "READY=1\nSTATUS=loading the task; not connected to the broker"


def _start_resting(stage: Stage) -> AgentProcess:
    """Start Ann, who frees the memory of training soon after she has nothing to train."""
    return stage.fleet.start(
        "ann", "tests.system.oracle_task:TASK", DEVICES["ann"], options=["--idle-release-s", "0.5"]
    )


def test_idle_agent_ends_its_training_process_and_plays_the_next_round(stage: Stage):
    ann = _start_resting(stage)
    ann.wait(lambda: "giving the memory of training back" in ann.log, "rests")
    ann.wait(lambda: not children(ann.pid), "has no training process")
    with stage.begin(rounds=2, devices=1, task="tests.system.oracle_task:TASK") as coordinator:
        done = coordinator.done()
    assert done.code == 0
    assert [one["outcome"] for one in done.document["rounds"]] == ["aggregated"] * 2
    wait_state(ann, "idle")
    ann.wait(lambda: not children(ann.pid), "has no training process again")


def test_idle_agent_writes_no_file(stage: Stage, manager: Manager):
    ann = _start_resting(stage)
    ann.wait_ready()
    manager.wait_alive()
    before = what_lies_in(ann.state_dir)
    ann.wait(lambda: not children(ann.pid), "has no training process")
    manager.wait_alive(20)
    assert what_lies_in(ann.state_dir) == before

    for _ in range(3):
        stage.broker.stop()
        manager.wait_status("idle; not connected to the broker")
        stage.broker.start()
        manager.wait_status("idle")
    ann.wait_ready()
    after = what_lies_in(ann.state_dir)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed <= {str(ann.state_dir), str(ann.state_dir / "status.json")}
