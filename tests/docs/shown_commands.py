"""Every command that the pages show, and why some of them are not called as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

import coordinator.cli
import device_agent.cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "broker_config/README.md", "benchmarks/README.md", "docs/*.md")
OURS = {"fedpatch": coordinator.cli, "fedpatch-agent": device_agent.cli}

# Pages that another test follows word for word.
FOLLOWED = {"tutorial-own-task.md": "tests/docs/test_tutorial.py"}
# Commands of others, by their first word.
FOREIGN = {
    "sudo": "changes the system; tests/hosts and tests/system/test_service.py play what it does",
    "ssh": "needs hosts; tests/hosts has its own",
    "for": "greets hosts by ssh",
    "git": "fetches the project, which is here",
    "cp": "copies the example inventory, which tests/hosts uses",
    "cd": "belongs to the line that follows",
    "export": "belongs to the line that follows",
    "systemctl": "looks at a service of this system; tests/system/test_service.py has its own",
    "journalctl": "reads this system's journal",
    "systemd-analyze": "looks at a service of this system",
    "ansible-vault": "asks for a password",
    "ansible-playbook": "needs hosts; tests/hosts plays all playbooks, and tests/docs/test_small.py reads each line's",
    "ansible": "needs hosts; tests/hosts plays the inventory",
    "install": "makes a file of what is typed",
    "pip": "installs into an environment; tests/test_wheel.py does",
    "curl": "reads the port of a run; tests/system/test_metrics.py does",
    "mosquitto": "serves until it is stopped; tests/broker starts it with these files",
}
# Commands of ours that are not called with the page's words to their end; tests/docs/test_small.py calls what has settings as
# far as these are looked at, and simulations in small.
ELSEWHERE = {
    "fedpatch demo": "tests/system/test_demo_run.py",
    "fedpatch run": "tests/system/test_by_hand.py",
    "fedpatch resume": "tests/system/test_survival.py",
    "fedpatch watch": "tests/system/test_watch.py",
    "fedpatch broker": "tests/coordinator/test_cli_broker.py: it serves until it is stopped",
    "fedpatch doctor": "tests/system/test_doctor.py: needs the broker that it names",
    "fedpatch simulate": "tests/docs/test_small.py, tests/simulator: minutes to days",
    "fedpatch-agent run": "tests/system/test_by_hand.py",
    "fedpatch-agent doctor": "tests/system/test_doctor.py: needs the broker that it names",
    "fedpatch-agent new-task": "tests/docs/test_small.py, tests/docs/test_tutorial.py",
}


@dataclass(frozen=True)
class Line:
    """One command of a page, without comment, redirection and pipe."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def _lines() -> Iterator[Line]:
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        text = path.read_text("utf-8").replace("\\\n", " ")
        fenced = re.findall(r"^ *```(?:sh|bash)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
        indented = re.findall(
            r"^    (\S.*)$", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
        )
        for line in (line.strip() for block in (*fenced, "\n".join(indented)) for line in block.splitlines()):
            for part in re.split(r" && ", re.split(r"\s+#\s|\s[|>&]\s|\s<<<", line)[0]):
                first = re.split(r"\s", part)[0].rpartition("/")[2]
                if first in {*FOREIGN, *OURS, "make", "python"} or re.match(r"[A-Z_]+=\S+ python", part):
                    yield Line(
                        path.name if path.parent.name == "docs" else str(path.relative_to(ROOT)),
                        tuple(shlex.split(part)),
                    )


LINES = [line for line in dict.fromkeys(_lines()) if line.page not in FOLLOWED]
OWN = [line for line in LINES if line.words[0].rpartition("/")[2] in OURS]


@cache
def _program(name: str) -> Any:
    return get_command(OURS[name].app)


@cache
def command_of(words: tuple[str, ...]) -> tuple[Any, str]:
    """The command that a line calls, and its full name."""
    name = words[0].rpartition("/")[2]
    found = _program(name)
    for word in words[1:]:
        inner = found.get_command(typer.Context(found), word) if hasattr(found, "list_commands") else None
        if inner is None:
            break
        found, name = inner, f"{name} {word}"
    return found, name


def played_elsewhere(line: Line) -> bool:
    """Whether another test plays it, with words of its own."""
    _, name = command_of(line.words)
    return (
        any(name == one or name.startswith(f"{one} ") for one in ELSEWHERE if one != "fedpatch broker")
        or name == "fedpatch broker"
    )
