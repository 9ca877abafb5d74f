"""Every command that a page shows: run for real, or looked at, or left out for a reason (tests/docs/shown_commands.py)."""

from __future__ import annotations

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.docs.shown_commands import (
    ELSEWHERE,
    FOLLOWED,
    FOREIGN,
    LINES,
    OURS,
    OWN,
    ROOT,
    Line,
    command_of,
    played_elsewhere,
)
from tests.programs import Program
from tests.system.commands import run

RUN_HERE = [line for line in OWN if not played_elsewhere(line)]

# What stands on the pages for something of the reader's, and what it is here.
STANDS_FOR = {
    "/var/lib/fedpatch-agent": "fedpatch-agent-state",
    "/var/lib/fedpatch/agent": "fedpatch-agent-state",
    "/var/lib/fedpatch/coordinator": "fedpatch-demo/coordinator",
    "/etc/fedpatch/agent.toml": "agent.toml",
    "pi-7": "device-00",
}
OPTIONS = {"--round": "1", "--to": "1", "--host": "device-00"}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a demo was played, with what a reader of the pages would have made by himself."""
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    folder = tmp_path_factory.mktemp("reader")
    # Whole values: both rounds of so small a fleet leave a personal model.
    options = (
        "--encoding",
        "fp32+zstd",
        "--devices",
        2,
        "--rounds",
        2,
        "--target-ua",
        "none",
        "--quorum",
        1,
        "--grace-s",
        100,
    )
    played = run("fedpatch", "demo", "--json", *options, "--recruit-deadline-s", 100, cwd=folder)
    assert played.code == 0, played.err
    (folder / "run").write_text(played.document["run"])
    shutil.copytree(folder / "fedpatch-demo/devices/device-00", folder / "fedpatch-agent-state", symlinks=True)
    shutil.copytree(folder / "fedpatch-demo/coordinator", folder / "fedpatch-state")
    (folder / "agent.toml").write_text(
        'broker = "mqtts://broker.local"\ntask = "digits"\ndata = "shard:0/2"\nstate_dir = "fedpatch-agent-state"\n'
    )
    image = np.zeros((1, 64), np.float32)
    np.save(folder / "today.npy", image)
    for name in ("morning", "evening"):
        np.savetxt(folder / f"{name}.csv", image, delimiter=",")
    return folder


def _as_here(line: Line, run_id: str) -> list[str]:
    """The arguments, with the reader's devices, paths and runs for those of the page."""
    words = list(line.words[1:])
    if words[0] == "unit":  # which wants paths as they will be on the device
        return words
    for index, word in enumerate(words):
        for stands, found in STANDS_FOR.items():
            words[index] = words[index].replace(stands, found)
        if re.fullmatch(r"20\d{6}(-\w+)*", word):
            words[index] = run_id
        if index and words[index - 1] in OPTIONS:
            words[index] = OPTIONS[words[index - 1]]
    if words[0] == "report" and words.count(run_id) > 1:
        words.remove(run_id)
    return [*words, "--ca-dir", "another-ca"] if words[:2] == ["ca", "init"] else words


def _make_ca(fedpatch: Program, lines: list[Line]) -> None:
    """What a page begins with that speaks of certificates; and a bundle, unless the page makes it."""
    if any(line.words[1] in ("ca", "device", "broker", "enrol") for line in lines):
        assert fedpatch("ca", "init", "--fleet", "kitchen", "--broker-name", "broker.local").code == 0
        if not any(line.words[1:3] == ("device", "add") for line in lines):
            bundle = ("--broker", "mqtts://broker.local", "--out", "pi-1.bundle")
            assert fedpatch("device", "add", "pi-1", *bundle).code == 0


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("page", sorted({line.page for line in RUN_HERE}))
def test_the_commands_of_a_page_do_what_they_should(page, reader, tmp_path, monkeypatch, capsys):
    """In their order, in a folder of a reader who has played the demo and has made a CA."""
    shutil.copytree(reader, tmp_path / "reader", symlinks=True)
    monkeypatch.chdir(tmp_path / "reader")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in [name for name in os.environ if name.startswith("FEDPATCH_")]:
        monkeypatch.delenv(name)
    programs = {name: Program(module.main, monkeypatch, capsys) for name, module in OURS.items()}
    lines = [line for line in RUN_HERE if line.page == page]
    _make_ca(programs["fedpatch"], lines)
    problems = []
    for line in lines:
        words = _as_here(line, Path("run").read_text())
        if words[0] == "device" and "--out" in words:  # the bundle of the line before has been carried to its device
            Path(words[words.index("--out") + 1]).unlink(missing_ok=True)
        ended = programs[line.words[0].rpartition("/")[2]](*words)
        allowed = (0, 1) if words[0] == "conditions" else (0,)
        if ended.code not in allowed:
            problems.append(f"{line}: exit code {ended.code}: {ended.err}")
    assert not problems, "\n".join(problems)


def test_many_commands_are_found():
    """The pages are read as people read them."""
    assert len(OWN) > 80
    assert {"cli.md", "security.md", "README.md", "broker_config/README.md"} <= {line.page for line in OWN}


@pytest.mark.parametrize("line", OWN, ids=str)
def test_every_option_that_a_page_shows_exists(line):
    """On every page, for every command of ours."""
    found, _ = command_of(line.words)
    known = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in line.words if word.startswith("--")} <= known


@pytest.mark.parametrize("line", [line for line in LINES if line.words[0] == "make"], ids=str)
def test_every_target_and_variable_of_make_exists(line):
    """Whatever a page tells to make can be made."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in line.words[1:]:
        name, equals, _ = word.partition("=")
        assert re.search(
            rf"^{name} \??:?=|\$\(or \$\({name}\)|\$\({name}\)" if equals else rf"^{name}:.* ## ",
            makefile,
            re.MULTILINE,
        )


@pytest.mark.parametrize("line", [one for one in LINES if "python" in one.words[0] or "=" in one.words[0]], ids=str)
def test_every_module_and_test_that_a_page_calls_exists(line):
    """`python -m MODULE`, and what pytest is pointed at."""
    module = line.words[line.words.index("-m") + 1]
    if module == "dashboards":
        assert (ROOT / "ansible/roles/monitoring/dashboards/__main__.py").is_file()
    else:
        assert module == "venv" or find_spec(module)
    for word in line.words:
        assert not word.startswith("tests/") or (ROOT / word).exists()


@pytest.mark.parametrize("place", [*FOLLOWED.values(), *FOREIGN.values(), *ELSEWHERE.values()])
def test_what_is_tested_elsewhere_is(place):
    """The files that the reasons name exist."""
    for path in re.findall(r"tests/[\w/.]*\w", place):
        assert (ROOT / path).exists()
