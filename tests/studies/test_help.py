"""Every study has a help page that ends with an example of its command."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import studies
from fedpatch.shared.app.command import run_app
from tests.support.programs import Program

FOLDER = Path(studies.__file__).parent
COMMANDS = {
    f"studies.{'.'.join(path.relative_to(FOLDER).with_suffix('').parts)}".removesuffix(".__main__"): path
    for path in sorted(FOLDER.rglob("*.py"))
    if "    run_app(" in path.read_text("utf-8")
}


def test_all_studies_are_found():
    """The search finds these known commands."""
    assert {"studies.paper", "studies.robustness", "studies.bytes", "studies.masked_rounds"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example(name, monkeypatch, capsys):
    module = import_module(name if COMMANDS[name].name != "__main__.py" else f"{name}.__main__")
    ended = Program(lambda: run_app(module.app, name), monkeypatch, capsys)("--help")
    assert ended.code == 0
    shown = " ".join(ended.out.replace("│", " ").split())
    assert re.search(rf"Example: (FEDPATCH_DATA=\S+ )?python -m {name}\b", shown)
