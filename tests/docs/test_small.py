"""Commands that the pages show at full size, or of a broker that is not here, called all the same: in small, or up to there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.shown_commands import LINES, OURS, OWN, ROOT, Line, command_of
from tests.programs import Program

# They look at all that they are told, also with --print-config, with which they do no more.
TAKE_SETTINGS = ("fedpatch demo", "fedpatch run", "fedpatch doctor", "fedpatch-agent run", "fedpatch-agent doctor")
# What makes a simulation a matter of seconds.
SMALL = {"--clients": "4", "--rounds": "2", "--devices": "30", "--task": "digits", "--target-ua": "0.2"}
# A cell or a figure of the paper at its smallest takes minutes; tests/simulator/test_paper.py computes some.
COMPUTED_ELSEWHERE = re.compile(r"simulate paper (?!.*--summary)")


def _name(line: Line) -> str:
    return command_of(line.words)[1]


CONFIGURED = [line for line in OWN if _name(line) in TAKE_SETTINGS]
SIMULATED = [
    line
    for line in OWN
    if _name(line).startswith("fedpatch simulate") and not COMPUTED_ELSEWHERE.search(" ".join(line.words))
]
PLAYBOOKS = [line for line in LINES if line.words[0].endswith("ansible-playbook") and "..." not in line.words]
BENCHMARKS = [line for line in LINES if any(word.startswith("benchmarks.") for word in line.words)]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Program]:
    """Ours, in an empty folder with the settings that pages speak of."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FEDPATCH_") and name != "FEDPATCH_DATA"]:
        monkeypatch.delenv(name)
    Path("fedpatch.toml").write_text('broker = "mqtts://broker.local"\ntask = "digits"\n')
    Path("agent.toml").write_text('broker = "mqtts://broker.local"\ntask = "digits"\ndata = "shard:0/10"\n')
    shutil.copy(ROOT / "docs/examples/two_moons_task.py", ".")
    return {name: Program(module.main, monkeypatch, capsys) for name, module in OURS.items()}


@pytest.mark.parametrize("line", CONFIGURED, ids=str)
def test_the_settings_that_a_command_on_a_page_gives_fit_together(line, programs):
    """Their values too: it prints what it would go by, where each setting comes from, and does nothing else."""
    words = [word.replace("/etc/fedpatch/", "") for word in line.words[1:] if word not in ("...", "--json")]
    if "..." in line.words:  # what the page leaves to the reader
        words += ["--data", "shard:0/10"] if _name(line).startswith("fedpatch-agent") else []
    ended = programs[line.words[0]](*words, "--print-config")
    assert ended.code == 0, ended.err
    for option, value in pairwise(words):
        if option.startswith("--") and not value.startswith("--") and option not in ("--config", "--out"):
            shown = next(one for one in ended.out.splitlines() if one.startswith(f"{option[2:].replace('-', '_')} "))
            assert value.strip('"') in shown


@pytest.mark.slow
@pytest.mark.parametrize("line", SIMULATED, ids=str)
def test_a_simulation_on_a_page_runs_in_small(line, programs, monkeypatch):
    """With four clients or thirty devices, and two rounds; a summary of the paper's cells as it is there."""
    words = list(line.words[1:])
    if "--summary" in words:
        monkeypatch.chdir(ROOT)
    else:
        for option, small in SMALL.items():
            if option in words:
                words[words.index(option) + 1] = small
        words += ["--rounds", "2"] if "--rounds" not in words else []
        words += ["--devices", "30"] if "fleet" in words and "--devices" not in words else []
        words += ["--workers", "1"] if "fleet" not in words else []
    ended = programs["fedpatch"](*words)
    assert ended.code == 0 and ended.out, ended.err


@pytest.mark.parametrize("line", [one for one in OWN if _name(one) == "fedpatch-agent new-task"], ids=str)
def test_a_task_is_begun_as_the_page_says(line, programs, monkeypatch, tmp_path):
    """In the folder that it names."""
    ended = programs["fedpatch-agent"](*(word.replace("~", str(tmp_path)) for word in line.words[1:]))
    assert ended.code == 0, ended.err
    name = line.words[2]
    assert len(list(tmp_path.rglob(f"{name}/{name}_task.py"))) == 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ansible") is None, reason="Ansible is not installed (pip install 'fedpatch[dev]')")
@pytest.mark.parametrize("line", PLAYBOOKS, ids=str)
def test_a_playbook_on_a_page_is_read_with_its_words(line):
    """Playbook, inventory and variables, as far as that goes without hosts; tests/hosts plays them."""
    words = [word.replace("inventories/mine", "inventories/example") for word in line.words[1:]]
    command = [sys.executable, "-m", "ansible.cli.playbook", *words, "--syntax-check"]
    done = subprocess.run(command, cwd=ROOT / "ansible", capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", BENCHMARKS, ids=str)
def test_a_benchmark_has_the_options_that_a_page_gives_it(line):
    """They take hours, so they are not run: the module names each option."""
    found = find_spec(next(word for word in line.words if word.startswith("benchmarks.")))
    assert found is not None and found.origin is not None
    files = Path(found.origin).parent.rglob("*.py") if found.submodule_search_locations else [Path(found.origin)]
    text = "".join(one.read_text("utf-8") for one in files)
    for word in (word for word in line.words if word.startswith("--")):
        named = rf'"{word}"|^ +{word[2:].replace("-", "_")}: '  # to argparse; to typer, as an argument of the command
        assert re.search(named, text, re.MULTILINE), word
