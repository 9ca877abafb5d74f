"""Tables of topics.md and exit-codes.md in docs/reference, made from the code; UPDATE_DOCS=1 writes them anew."""

from __future__ import annotations

import os

import pytest

from fedpatch.shared.errors import EXIT_LESS, FedpatchError
from fedpatch.shared.wire.topics import TOPICS, mosquitto_acl
from tests.support.paths import ROOT

DOCS = ROOT / "docs" / "reference"
MARK = "<!-- From here on, tests/docs/test_reference_pages.py writes what the code says. -->"


def _topics() -> str:
    lines = ["| topic | writer | readers | QoS | retained | what it carries |", "|---|---|---|---|---|---|"]
    for one in TOPICS:
        retained = "yes" if one.retain else "no"
        readers = ", ".join(one.readers)
        lines.append(f"| `{one.pattern}` | {one.writer} | {readers} | {one.qos} | {retained} | {one.purpose} |")
    acl = mosquitto_acl("kitchen", devices=["pi-1"], watchers=["ann"]).splitlines()
    rules = "".join(f"    {line}".rstrip() + "\n" for line in acl)
    return "\n".join(lines) + "\n\n## The rules for a broker that follow\n\n" + rules


def _exit_codes() -> str:
    lines = ["| error | exit code | what it says |", "|---|---|---|"]
    waiting = [FedpatchError]
    while waiting:
        error = waiting.pop(0)
        # Those that other modules add are named in the tree of shared/errors.py.
        waiting = [one for one in error.__subclasses__() if one.__module__ == "fedpatch.shared.errors"] + waiting
        said = (error.__doc__ or "").split("\n\n")[0].strip()
        lines.append(f"| `{error.__name__}` | {error.exit_code} | {said} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("name", "made"), [("topics.md", _topics()), ("exit-codes.md", _exit_codes())])
def test_the_page_says_what_the_code_says(name, made):
    """Row by row."""
    path = DOCS / name
    head = path.read_text("utf-8").partition(MARK)[0]
    if os.environ.get("UPDATE_DOCS"):
        path.write_text(f"{head}{MARK}\n\n{made}", "utf-8")
    assert path.read_text("utf-8") == f"{head}{MARK}\n\n{made}"


def test_every_exit_code_is_explained_in_words():
    """Above the table of errors, with those that are none: success and signals."""
    head = (DOCS / "exit-codes.md").read_text("utf-8").partition(MARK)[0]
    explained = {int(line.split("|")[1]) for line in head.splitlines() if line.startswith("| ") and line[2].isdigit()}
    errors: list[type[FedpatchError]] = [FedpatchError, *FedpatchError.__subclasses__()]
    codes = {error.exit_code for error in errors}
    assert explained == codes | {0, EXIT_LESS, 130}
