"""The commit and the processor that a measurement names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fedpatch.shared.app import provenance

_PRINT_COMMIT = "from provenance import source_commit; print(source_commit())"


def _run_git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _printed_commit(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-P", "-c", _PRINT_COMMIT],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    return done.stdout.strip()


def test_source_commit_marks_changed_checkout_and_ignores_the_project_around_an_installed_package(tmp_path):
    _run_git(tmp_path, "init", "-q")
    shutil.copy(provenance.__file__, tmp_path)
    assert _printed_commit(tmp_path) == "None"

    _run_git(tmp_path, "add", ".")
    _run_git(tmp_path, "commit", "-qm", "first")
    head = _run_git(tmp_path, "rev-parse", "HEAD")
    assert _printed_commit(tmp_path) == head

    with (tmp_path / "provenance.py").open("a") as file:
        file.write("# changed\n")
    assert _printed_commit(tmp_path) == f"{head}-dirty"


def test_processor_name_without_cpuinfo_is_the_architecture(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_CPU_INFO", tmp_path / "absent")
    assert provenance.processor_name() == os.uname().machine
