"""Every command of the pages, typed as shown, page by page, on a disposable machine."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.pages import OTHER, TYPED, commands
from tests.docs.prepared import (
    AFTERWARDS,
    BEFORE,
    BETWEEN,
    EVERYWHERE,
    FLEET,
    FOLLOWED_ALONE,
    HOUSE,
    KITCHEN,
    LEFT_TO_THE_READER,
    PLAYED_ELSEWHERE,
    SERVICE,
)
from tests.docs.reader_machine import ReaderMachine
from tests.docs.shown_output import shape_of
from tests.support.paths import ROOT

HERE = Path(__file__).parent
STAND_INS = (
    *("fedpatch", "fedpatch-agent", "fedpatch-relay", "python", "python3", "pip", "make", "sudo", "ssh", "git", "apt"),
    *(
        "systemctl",
        "systemd-analyze",
        "journalctl",
        "mosquitto",
        "mosquitto_passwd",
        "ansible",
        "ansible-playbook",
        "ansible-vault",
    ),
)
PAGES = sorted({block.page for block in TYPED} - FOLLOWED_ALONE.keys() - PLAYED_ELSEWHERE.keys())
SHOWN = sorted({command for block in TYPED for command in commands(block.text)})
CODE_MARK = "==== code"

pytestmark = [pytest.mark.pages, pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Reader:
    """A reader who follows pages: a machine, a home on it, and the environment of the shell."""

    machine: ReaderMachine
    home: Path
    environment: Mapping[str, str]
    outputs: dict[str, str] = field(default_factory=dict)

    def follows(self, page: str) -> str:
        """Type all commands of the page, once; return the output."""
        if page not in self.outputs:
            self.outputs[page] = "\n" + self.types(_script(page))
        return self.outputs[page]

    def types(self, script: str) -> str:
        """Run the script in a shell, in the home folder; return the output."""
        shown = self.home / "output"
        with (self.home / "typed").open("rb") as typed, shown.open("wb") as output:
            self.machine.call(["bash", "-c", script], self.home, self.environment, typed, output)
        return shown.read_text("utf-8", errors="replace")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader with a fleet that has finished two runs, its certificates, and a copy of the project."""
    folder = tmp_path_factory.mktemp("reader")
    home, programs = folder / "home", folder / "bin"
    home.mkdir()
    programs.mkdir()
    for name in STAND_INS:
        (programs / name).symlink_to(HERE / "stand_ins.sh")
    (programs / "vault-word").write_text("word\n")
    (home / "typed").write_text("word\n")
    with ReaderMachine(folder / "machine") as machine:
        one = Reader(machine, home, _environment(home, programs, machine))
        output = one.types(f"set -eu\n{FLEET}\necho all is there\n")
        assert output.endswith("all is there\n"), output
        yield one


def _environment(home: Path, programs: Path, machine: ReaderMachine) -> dict[str, str]:
    data = os.environ.get("FEDPATCH_DATA", str(home / "no data"))
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FEDPATCH_", "PYTEST_"))}
    return ours | {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "PYTHONPATH": str(ROOT),
        "SSL_CERT_FILE": str(home / "house/ca.crt"),
        "READER_BIN": str(programs),
        "READER_CALL": str(HERE / "reader_call.py"),
        "READER_DATA": data,
        "READER_DEVICES": "1",
        "READER_HOME": str(home),
        "READER_PYTHON": sys.executable,
        "READER_ROOT": str(ROOT),
        "READER_SOCKET": str(machine.socket),
    }


def _as_here(command: str) -> str:
    """The command with values for the reader's placeholders, and with the ids of the existing runs."""
    for pattern, words in LEFT_TO_THE_READER:
        command = re.sub(pattern, words, command)
    runs = iter(("$(sed -n 1p $READER_HOME/runs)", "$(sed -n 2p $READER_HOME/runs)"))
    return re.sub(r"\b20\d{6}(?:-\d{6})?(?:-[0-9a-f]{6})?\b", lambda _: next(runs), command)


def _script(page: str) -> str:
    lines = [EVERYWHERE, BEFORE.get(page, "")]
    for command in (command for block in TYPED if block.page == page for command in commands(block.text)):
        lines += [words for (where, start), words in BETWEEN.items() if where == page and command.startswith(start)]
        lines += [f"cat <<'SHOWN'\n$ {command}\nSHOWN", _as_here(command), f'echo "{CODE_MARK} $?"']
    return "\n".join([*lines, AFTERWARDS.get(page, ""), f'echo "{CODE_MARK} $?"'])


@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_ends_with_0(page, reader):
    """All commands run in order, in one shell, and end with 0."""
    output = reader.follows(page)
    typed = output.split("\n$ ")[1:]
    assert len(typed) == sum(len(commands(block.text)) for block in TYPED if block.page == page), output
    wrong = [one for one in typed if set(re.findall(rf"^{CODE_MARK} (\d+)$", one, re.MULTILINE)) != {"0"}]
    assert not wrong, "\n$ ".join(["", *wrong])


@pytest.mark.parametrize("command", [one for one in SHOWN if re.search(r"\bmake .*=", one)])
def test_every_variable_that_a_page_gives_make_exists(command):
    """An unknown target ends make with an error; an unknown variable does not."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for name in re.findall(r"\b([A-Z_]+)=", command):
        assert re.search(rf"^{name} \??:?=|\$\(or \$\({name}\)|\$\({name}\)", makefile, re.MULTILINE), name


def test_every_page_is_followed():
    """This includes pages with a test of their own; and no preparation is left for a command that no page shows."""
    assert len(TYPED) > 120 and len(PAGES) > 20
    for page, test in (FOLLOWED_ALONE | PLAYED_ELSEWHERE).items():
        assert any(block.page == page for block in TYPED) and (ROOT / test).exists()
    shown = {(block.page, command) for block in TYPED for command in commands(block.text)}
    assert {*BEFORE, *AFTERWARDS} <= set(PAGES)
    for page, start in BETWEEN:
        assert any(command.startswith(start) for where, command in shown if where == page), start


def _shown(page: str, start: str) -> list[str]:
    found = [block.text for block in OTHER if block.page == page and block.text.startswith(start)]
    assert found, (page, start)
    return [line for text in found for line in text.splitlines()]


@pytest.mark.parametrize(
    ("page", "start"),
    [("README.md", "run 20"), ("docs/reference/cli.md", "round 3/30")],
)
def test_run_output_on_a_page_matches_a_real_run(page, start, reader):
    output = {shape_of(line) for line in reader.follows("README.md").splitlines()}
    assert {shape_of(line) for line in _shown(page, start)} <= output


def test_doctor_output_on_its_page_matches_a_real_check(reader):
    """Passed checks have the same text, and every check on the page exists."""
    output = reader.follows("docs/how-to/brokers.md")
    good = {shape_of(line) for line in output.splitlines() if line.startswith("ok ")}
    shown = _shown("docs/how-to/doctor.md", "ok ")
    assert {shape_of(line.replace("1883", "8883")) for line in shown if line.startswith("ok ")} <= good
    checks = r"^(?:ok|warn|fail|skip) +(\w+)"
    assert set(re.findall(checks, "\n".join(shown), re.MULTILINE)) <= set(re.findall(checks, output, re.MULTILINE))


def test_documents_of_the_pages_have_the_keys_of_those_that_are_printed(reader):
    printed = reader.types(
        f"""{EVERYWHERE}{HOUSE}{KITCHEN}
fedpatch watch --once --json --broker mqtts://broker.local --fleet kitchen
fedpatch show last --json
fedpatch simulate --json 2> /dev/null
"""
    )
    watched, run, simulated = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    for page, start, document in (
        ("docs/how-to/watch.md", '{"fleet"', watched),
        ("docs/reference/cli.md", '{"run"', run),
        ("docs/reference/cli.md", '{"study"', simulated),
    ):
        outer = re.sub(r"\[.*?\]", "", " ".join(_shown(page, start)))
        assert len(re.findall(r'"(\w+)":', outer)) > 4
        assert set(re.findall(r'"(\w+)":', outer)) <= document.keys()
    assert set(re.findall(r'"(\w+)":', "".join(_shown("docs/reference/cli.md", '{"study"')[1:]).partition("}")[0])) - {
        "points"
    } <= (simulated["points"][0].keys())


def test_the_picture_of_a_watched_run_has_the_columns_of_its_table(reader):
    """The table of `fedpatch show` has the same columns."""
    output = reader.types("fedpatch show last --state-dir fedpatch-state")
    (header,) = [line.split() for line in _shown("docs/how-to/watch.md", "20") if line.lstrip().startswith("round ")]
    assert header in [line.split() for line in output.splitlines()]


def test_personal_model_is_in_the_documented_folder(reader):
    output = reader.types("find -L pi-7 -path '*/current/*'").splitlines()
    for line in _shown("docs/how-to/personal-model.md", "STATE_DIR"):
        assert line.replace("STATE_DIR", "pi-7").replace("TASK", "digits") in output


def test_owner_types_each_command_of_the_table_with_its_settings(reader):
    """They are no blocks, so that they are not typed with the rest of the page."""
    page = (ROOT / "docs/how-to/your-device.md").read_text("utf-8")
    commands = re.findall(r"^\| `(fedpatch-agent [^`]*)`", page, re.MULTILINE)
    assert len(commands) == 6
    lines = [f'{one} --state-dir /var/lib/fedpatch-agent; echo "{CODE_MARK} $?"' for one in commands]
    output = reader.types("\n".join([EVERYWHERE, HOUSE, SERVICE, *lines]))
    codes = re.findall(rf"^{CODE_MARK} (\d+)$", output, re.MULTILINE)
    assert codes == ["0"] * len(commands), output


@pytest.mark.parametrize(
    ("page", "number"),
    [("docs/how-to/service.md", 0), ("docs/how-to/service.md", 1), ("docs/explanation/threat-model.md", 0)],
)
def test_systemd_takes_what_a_page_adds_to_the_unit(page, number, reader):
    """The output is empty; for an invalid block systemd prints a warning."""
    added = [block.text for block in OTHER if block.page == page and block.text.startswith("[Service]")][number]
    assert set(re.findall(r"FEDPATCH_AGENT_(\w+)=", added)) <= {"PASSWORD_FILE"}
    folder = "/etc/systemd/system/fedpatch-agent.service.d"
    for text in (added, f"{added}Nonsense=yes\n"):
        script = (
            f"mkdir -p {folder}\ncat > {folder}/page.conf <<'END'\n{text}END\nsystemctl daemon-reload\nrm -r {folder}\n"
        )
        output = reader.types(EVERYWHERE + script)
        assert ("Nonsense" in output) == ("Nonsense" in text), output
        assert "Nonsense" in text or not output, output
