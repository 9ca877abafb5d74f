"""`fedpatch watch` beside a real run: in real terminals, for programs, over the network, and with read rights only."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import CoordinatorState, Envelope
from fedpatch.shared.wire.topics import mosquitto_acl
from tests.coordinator.observability.statuses import collecting, fleet
from tests.support.brokers import Mosquitto, client
from tests.support.paths import ROOT
from tests.system.commands import PATIENCE_S, Command, run
from tests.system.fleet import Fleet
from tests.system.stage import Stage

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

_POLL_S = 0.1


@dataclass
class Held:
    """A run whose second round stays open until the test releases it: Bob has reported, and Ann trains."""

    stage: Stage
    coordinator: Command

    @property
    def where(self) -> list[str]:
        """The options with which another machine finds the run."""
        return ["--broker", self.stage.broker.url, "--fleet", self.stage.fleet.name]

    def picture(self) -> dict:
        done = run("fedpatch", "watch", *self.where, "--once", "--json")
        assert done.code == 0, done.err
        return dict(done.document)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """A held run of a broker, two devices and a coordinator."""
    directory = tmp_path_factory.mktemp("watched")
    with Mosquitto() as broker, Fleet(broker.url, directory / "agents") as agents:
        stage = Stage(broker, agents, directory)
        stage.start_agents()
        stage.hold("ann", round=2, step=3)
        with stage.begin() as coordinator:
            stage.wait_held("ann", coordinator)
            coordinator.wait(lambda: "round 1/4" in coordinator.err, "has played a round")
            held = Held(stage, coordinator)
            _until(lambda: _states(held.picture()) == {"ann": "training", "bob": "reported"}, "Bob has reported")
            yield held


def _states(document: dict) -> dict[str, str]:
    return {one["device"]: one["state"] for one in document["devices"]}


def _until(fits: Callable[[], object], what: str, shown: Callable[[], object] = lambda: "") -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not fits():
        assert time.monotonic() < give_up_at, f"it never came to this: {what} {shown()}"
        time.sleep(_POLL_S)


def _is_the_picture(lines: list[str]) -> bool:
    """Return whether the picture is complete. A terminal may be read while it is drawn, so tests wait for this."""
    rows = [line.split() for line in lines]
    text = "\n".join(lines)
    return (
        "round 2/4  collecting" in text
        and "training 1  reported 1" in text
        and sum("reported " in line and "needed" in line for line in lines) == 1
        and sum(row[:2] == ["ann", "training"] for row in rows) == 1
        and sum(row[:2] == ["bob", "reported"] for row in rows) == 1
        and sum("user accuracy" in line for line in lines) == 1
        and sum(row[:3] == ["1", "aggregated", "2/2"] and row[-1] == "kB" for row in rows) == 1
    )


class Terminal:
    """A real terminal in tmux with this many columns and lines, which runs a command and shows its end."""

    def __init__(self, directory: Path, columns: int, lines: int) -> None:
        self._tmux = ["tmux", "-S", str(directory / "socket"), "-f", str(directory / "tmux.conf")]
        (directory / "tmux.conf").write_text("set -g status off\n")
        self._size = ["-x", str(columns), "-y", str(lines)]

    def run(self, *command: str) -> None:
        words = " ".join((sys.executable, "-m", *command))
        shell = f"cd {ROOT} && trap : INT; PYTHONPATH={ROOT} LC_ALL=C.UTF-8 {words}; echo it ended with $?; cat"
        self("new-session", "-d", *self._size, shell)

    def __call__(self, *command: str) -> str:
        return subprocess.run([*self._tmux, *command], capture_output=True, text=True, check=True).stdout

    @property
    def lines(self) -> list[str]:
        return self("capture-pane", "-p").splitlines()

    def wait(self, text: str) -> list[str]:
        """Wait until the terminal shows `text`, and return its lines."""
        _until(lambda: any(text in line for line in self.lines), f"{text!r} is shown", lambda: self.lines)
        return self.lines

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self("kill-server")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (Debian: apt install tmux)")
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_terminal_shows_round_phase_and_devices(held, socket_folder, columns, lines):
    with Terminal(socket_folder, columns, lines) as terminal:
        terminal.run("fedpatch", "watch", *held.where)
        _until(lambda: _is_the_picture(terminal.lines), "the picture is whole", lambda: terminal.lines)
        assert max(map(len, terminal.lines)) <= columns
        assert terminal("display", "-p", "#{cursor_flag}").strip() == "0"
        terminal("send-keys", "C-c")
        assert "it ended with 130" in terminal.wait("it ended with")
        assert terminal("display", "-p", "#{cursor_flag} #{alternate_on}").strip() == "1 0"
        assert not any("Traceback" in line or "Aborted" in line for line in terminal.lines)


def test_watch_once_json_is_one_document(held):
    picture = held.picture()
    assert (picture["fleet"], picture["coordinator"], picture["round"]) == (held.stage.fleet.name, "online", 2)
    assert (picture["phase"], picture["stopped"], picture["rounds_in_all"]) == ("collecting", "", 4)
    assert (picture["reported"], picture["needed"], picture["present"]) == (1, 2, 2)
    (first,) = picture["rounds"]
    assert (first["round"], first["outcome"], first["reported"]) == (1, "aggregated", 2)
    assert 0 < picture["bytes_up"] == first["bytes_up"]
    assert picture["user_accuracy"] is not None


def test_watch_on_the_coordinators_machine_needs_no_option(held, tmp_path):
    done = run("fedpatch", "watch", "--once", "--state-dir", held.stage.state_dir)
    assert done.code == 0, done.err
    assert "round 2/4  collecting" in done.out
    assert "\x1b" not in done.out
    without = run("fedpatch", "watch", "--once", "--state-dir", tmp_path)
    assert without.code == 2
    assert "say where it is, with --broker URL and --fleet NAME" in without.err


def test_watch_of_a_fleet_without_coordinator_exits_with_1(held):
    with client(held.stage.broker.url, "other", clean_start=True) as other:
        gone = encode(Envelope(CoordinatorState(online=False, boot="b1")))
        other.link.publish(topics.coordinator_state("empty"), gone, retain=True)
        other.settle()
    done = run("fedpatch", "watch", "--once", "--broker", held.stage.broker.url, "--fleet", "empty")
    assert done.code == 1
    assert "no coordinator is at work for it" in done.err


def test_watcher_with_read_rights_alone_sees_the_run():
    acl = mosquitto_acl("home", devices=["pi-1"], watchers=["ann"])
    users = {"coordinator": "c", "ann": "a"}
    with (
        Mosquitto(acl=acl + "\npattern readwrite barrier/%c\n", passwords=users) as broker,
        client(broker.url, "works", username="coordinator", password="c") as works,
        Command(
            "fedpatch",
            "watch",
            *("--broker", broker.url, "--fleet", "home", "--username", "ann", "--json"),
            environment={"FEDPATCH_PASSWORD": "a"},
        ) as watching,
    ):
        status = encode(Envelope(collecting(*fleet(9)).status, run="run-1", round=3))

        def has_printed() -> bool:
            works.link.publish(topics.run_status("home"), status, qos=0)
            return bool(watching.out)

        watching.wait(has_printed, "prints the status")
        assert json.loads(watching.out.splitlines()[0])["run"] == "run-1"
        done = watching.interrupt()
    assert (done.code, len(done.out.splitlines())) == (130, 1)


def test_watch_follows_death_return_and_end_of_the_coordinator(held):
    with (
        Command("fedpatch", "watch", *held.where) as watching,
        Command("fedpatch", "watch", *held.where, "--json") as listening,
    ):
        watching.wait(lambda: "round 2/4" in watching.out, "shows the run")
        listening.wait(lambda: listening.out, "shows the run")
        held.coordinator.kill()
        watching.wait_err("the coordinator is gone; waiting for it to come back")
        listening.wait(lambda: '"coordinator": "away"' in listening.out, "shows that it is gone")
        with held.stage.resume() as coordinator:
            held.stage.holds["ann"].release()
            assert coordinator.done().code == 0
        watching.wait_err("is over: all rounds done")
        watching.wait(lambda: "round 4/4 aggregated: 2/2 reported" in watching.out, "prints the last round")
        listening.wait(lambda: '"stopped": "max_rounds"' in listening.out, "shows the end")
        ended, documents = watching.interrupt(), listening.interrupt()
    assert (ended.code, documents.code) == (130, 130)
    everything = [json.loads(line) for line in documents.out.splitlines()]
    assert everything[-1]["stopped"] == "max_rounds"
    assert {one["coordinator"] for one in everything} == {"online", "away"}
    assert "\x1b" not in ended.out
