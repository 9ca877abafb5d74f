"""Rules of the project that concern more than one file; pyproject.toml has the rules that tools support."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter

import pytest

from tests.support.paths import ROOT

PACKAGES = ("coordinator", "device_agent", "relay", "shared", "simulator")


def test_importing_the_agent_loads_neither_torch_nor_numpy():
    """The device process with the network connection cannot hold a model, since it loads no library for models."""
    modules = ("runtime.agent", "runtime.startup", "runtime.training_supervisor", "cli.main", "job.job_state_machine")
    agent = ", ".join(f"fedpatch.device_agent.{name}" for name in modules)
    program = f"import sys, fedpatch, {agent}; print(*sorted({{'numpy', 'torch'}} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""


def test_a_folder_of_packages_cannot_be_imported_by_its_own_name():
    """In a checkout this would load a second copy of the modules; the error names the right import."""
    for package in PACKAGES:
        command = [sys.executable, "-c", f"import {package}"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 1
        assert f"import fedpatch.{package}, not {package}" in result.stderr.splitlines()[-1]


def test_every_package_documents_its_content():
    rooms = [folder.parent for package in PACKAGES for folder in (ROOT / package).rglob("__init__.py")]
    assert len(rooms) > 30
    without = [room for room in rooms if not ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))]
    assert without == []


RETIRED = (
    *("purse", "doorkeeper", "warden", "books", "ledger", "desk", "reins", "teller", "fate", "sitting", "onlooker"),
    *("namesake", "upkeep", "outlook", "willingness", "performer", "asking", "storing", "folding", "watched"),
)
SAME_IN_BOTH_PROCESSES = {"ChunkReceived", "EffectHandler", "EffectRunner", "Ports", "SendMessage"}


def _product_classes() -> list[tuple[str, str]]:
    return [
        (node.name, path.relative_to(ROOT).as_posix())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]


def test_no_class_name_stands_for_two_things():
    """Exceptions are classes with the same meaning in both processes."""
    counts = Counter(name for name, _ in _product_classes())
    assert {name for name, count in counts.items() if count > 1} == SAME_IN_BOTH_PROCESSES


def test_the_product_imports_nothing_of_its_own_under_another_name():
    """One name for one thing; ruff (PLC0414) looks at redundant aliases only."""
    trees = {
        path: ast.parse(path.read_text("utf-8")) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    }
    renamed = [
        f"{path.relative_to(ROOT)}: {name.name} as {name.asname}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedpatch")
        for name in node.names
        if name.asname not in (None, name.name)
    ]
    assert renamed == []


@pytest.mark.medium
def test_no_module_or_class_has_a_retired_name():
    """The glossary in docs/explanation/concepts.md has the present names."""
    modules = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [str(path) for path in modules if path.stem in RETIRED] == []
    assert [found for found in _product_classes() if found[0].lower().strip("_") in RETIRED] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_each_file_that_a_page_for_developers_names_exists(page: str):
    """ARCHITECTURE.md names files below the folder of a table's heading."""
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"(?<![\w./-])((?:[a-z_]+/)+[a-z_]+\.py)\b", text))
    assert len(named) > 18
    assert [
        one for one in sorted(named) if not any((ROOT / folder / one).is_file() for folder in (".", *PACKAGES))
    ] == []


def test_architecture_names_each_file_with_a_lock():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    item = re.search(r"^- \*\*Locks\.\*\*.*?(?=^- |^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert item is not None
    made = re.compile(r"\bthreading\.(?:R?Lock|Condition)\(")
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    locking = {path.relative_to(ROOT).as_posix() for path in paths if made.search(path.read_text("utf-8"))}
    assert set(re.findall(r"[\w/]+\.py", item[0])) == locking
