"""A password is sent to the broker only: not to a file, a log, a command line, a child, a metric or a page."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.monitoring.prometheus import fetch
from tests.support.brokers import HOST, Mosquitto, free_port
from tests.system.commands import Command, Done, run
from tests.system.held_task import REFERENCE, Hold

pytestmark = [pytest.mark.system, pytest.mark.broker]

# Unique texts that a hash or a base64 text cannot contain by chance.
COORDINATORS, DEVICES_OWN, WRONG = "Coordinators-own&pass=word!7", "Devices-own&pass=word!8", "Quite-wrong&pass=word!9"
SECRETS = (COORDINATORS, DEVICES_OWN, WRONG)
DEVICE = "ann"
_OWN, _AGENTS = {"FEDPATCH_PASSWORD": COORDINATORS}, {"FEDPATCH_AGENT_PASSWORD": DEVICES_OWN}
_STEPS = 3  # steps of a round with its examples


@dataclass
class Played:
    """Traces of a run with passwords: directories, outputs, and command lines and environments of processes."""

    directory: Path
    outputs: dict[str, str] = field(default_factory=dict)
    processes: dict[str, bytes] = field(default_factory=dict)


def _forms(secret: str) -> set[bytes]:
    """Return the secret unchanged and in common encodings."""
    raw = secret.encode()
    texts = {secret, raw.hex(), quote(secret), json.dumps(secret), secret.replace("&", "&amp;")}
    # In a longer text the secret has one of three base64 alignments; for each the middle of its code is fixed.
    coded = {base64.b64encode(b"." * shift + raw)[4:-4] for shift in range(3)}
    return {text.encode() for text in texts} | coded


def _leaks(data: bytes) -> list[str]:
    return [secret for secret in SECRETS if any(form in data for form in _forms(secret))]


def _look_at_processes(above: int) -> Iterator[tuple[str, bytes]]:
    """Yield command line and environment of each descendant of the process `above`."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    for pid in parents:
        ancestor = parents[pid]
        while ancestor not in (0, above):
            ancestor = parents.get(ancestor, 0)
        if ancestor == above:
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    yield f"{pid} {name}", Path(f"/proc/{pid}/{name}").read_bytes()


def _command_lines() -> Iterator[tuple[str, bytes]]:
    """Yield the command line of every process on the machine, since every user may read them."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield str(path), path.read_bytes()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A run with all features that could leak a password: debugging, metrics, watching, a report."""
    directory = tmp_path_factory.mktemp("secrets")
    found = Played(directory / "left")
    found.directory.mkdir()
    secret_file = directory / "password"
    secret_file.touch(mode=0o600)
    secret_file.write_text(COORDINATORS)
    hold = Hold(directory / "hold")
    hold.at(_STEPS + 1)
    agents = found.directory / "agent"
    with Mosquitto(passwords={"coordinator": COORDINATORS, DEVICE: DEVICES_OWN}) as broker:
        place = ["--broker", broker.url, "--fleet", "home", "--username"]
        data = ["--task", REFERENCE, "--data", f"n=23,test=20,seed=2;{hold.path}", "--admission", "always", "--nice", 0]
        login = [*place, DEVICE, "--device-id", DEVICE, "--state-dir", agents]
        options = [*place, "coordinator", "--task", REFERENCE, "--state-dir", found.directory / "coordinator"]
        with Command("fedpatch-agent", "run", "--debug", *login, *data, environment=_AGENTS, preloaded=False) as agent:
            _play(found, options, secret_file, hold, agent)
            _ask_more(found, options, secret_file)
            _keep(found, "agent", agent.terminate())
    yield found


def _play(found: Played, options: list[object], secret_file: Path, hold: Hold, agent: Command) -> None:
    """Run two rounds; in the second, while the device trains, record metrics and processes."""
    target = f"{HOST}:{free_port()}"
    by_file = ["--password-file", secret_file, "--debug", "--metrics", target]
    patient = ["--rounds", 2, "--quorum", 1, "--deadline-s", 200, "--recruit-deadline-s", 100, "--wait-s", 100]
    with Command("fedpatch", "run", *options, *by_file, *patient, preloaded=False) as coordinator:
        coordinator.wait(lambda: hold.reached, "has a device that trains in the second round")
        found.outputs["metrics"] = fetch(f"http://{target}/metrics")
        found.processes |= dict(_look_at_processes(agent.pid)) | dict(_command_lines())
        place = [one for one in options[:6] if one]
        _keep(found, "watch", run("fedpatch", "watch", "--once", "--json", "--debug", *place, environment=_OWN))
        hold.release()
        _keep(found, "run", coordinator.done())


def _ask_more(found: Played, options: list[object], secret_file: Path) -> None:
    """Run the other commands with right and wrong passwords, and the report."""
    state = ["--state-dir", found.directory / "coordinator"]
    elsewhere = [*options[:-1], found.directory / "elsewhere"]
    both = {"FEDPATCH_PASSWORD_FILE": str(secret_file), **_OWN}
    programs: dict[str, tuple[int | None, tuple[Any, ...], dict[str, str]]] = {
        "resume": (0, ("fedpatch", "resume", "last", *state, "--rounds", 3, "--debug"), _OWN),
        "refused": (3, ("fedpatch", "run", "--debug", *elsewhere), {"FEDPATCH_PASSWORD": WRONG}),
        "print-config": (0, ("fedpatch", "run", "--print-config", *options), _OWN),
        "agent's": (0, ("fedpatch-agent", "run", "--print-config", "--username", DEVICE, "--data", "x"), _AGENTS),
        "doctor": (None, ("fedpatch", "doctor", "--json", "--debug", *elsewhere), _OWN),
        "both": (2, ("fedpatch", "run", *elsewhere), both),
    }
    with ThreadPoolExecutor(3) as pool:
        ended = {name: pool.submit(run, *words, environment=own) for name, (_, words, own) in programs.items()}
        for name, (code, _, _) in programs.items():
            _keep(found, name, ended[name].result(), code=code)
    page = found.directory / "report.html"
    _keep(found, "report", run("fedpatch", "report", "last", *state, "--out", page, "--json"))


def _keep(found: Played, name: str, done: Done, *, code: int | None = 0) -> None:
    assert code in (None, done.code), (name, done)
    found.outputs[name] = done.out + done.err


def _all(items: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in items.items()}


def test_no_file_holds_it(played):
    """State directories of both sides, debug logs, the report, patches, the registry with its journal."""
    files = {str(path.relative_to(played.directory)): path for path in played.directory.rglob("*") if path.is_file()}
    assert {"agent/status.json", "report.html"} < files.keys() and any("registry" in name for name in files)
    assert {name: leaks for name, path in files.items() if (leaks := _leaks(path.read_bytes()))} == {}


def test_nothing_that_is_printed_holds_it(played):
    """Results, errors, logs, settings and served metrics, also if the password was wrong or given twice."""
    assert len(played.outputs["metrics"]) > 1000
    assert "refused user 'coordinator'" in played.outputs["refused"]
    assert 'password = "***"' in played.outputs["print-config"]
    assert {name: leaks for name, data in _all(played.outputs).items() if (leaks := _leaks(data))} == {}


def test_no_process_shows_it(played):
    """No command line on the machine, and not the environment of the process that runs the task's code."""
    assert any(name.endswith("environ") and b"PATH=" in data for name, data in played.processes.items())
    assert {name: leaks for name, data in played.processes.items() if (leaks := _leaks(data))} == {}


@pytest.mark.parametrize("form", sorted(_forms(COORDINATORS)))
def test_the_search_finds_what_it_looks_for(form):
    assert _leaks(b"user=ann&" + form + b"\n") == [COORDINATORS]
    assert _leaks(base64.b64encode(b"coordinator:" + COORDINATORS.encode())) == [COORDINATORS]
