"""Docstrings: described arguments and attributes exist, and the examples of the public rooms run."""

from __future__ import annotations

import ast
import doctest
import itertools
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ROOMS = (
    "coordinator/aggregation",
    "coordinator/api",
    "coordinator/cohort",
    "coordinator/guard",
    "coordinator/masking",
    "coordinator/pki",
    "coordinator/privacy",
    "coordinator/report",
    "coordinator/rounds",
    "coordinator/runtime",
    "coordinator/storage",
    "device_agent/bus",
    "device_agent/job",
    "device_agent/masking",
    "device_agent/models",
    "device_agent/policy",
    "device_agent/runtime",
    "device_agent/sensors",
    "device_agent/state",
    "device_agent/telemetry",
    "device_agent/training",
    "shared/app",
    "shared/config",
    "shared/diagnostics",
    "shared/errors.py",
    "shared/masking",
    "shared/mqtt",
    "shared/onnx",
    "shared/scripting",
    "shared/privacy",
    "shared/task_checks",
    "shared/tasks",
    "shared/tensors",
    "shared/trackers",
    "shared/wire",
    "simulator/attacks",
)
MODULES = sorted(path for room in ROOMS for path in [*(ROOT / room).rglob("*.py"), ROOT / room] if path.suffix == ".py")
FOLDERS = ("shared", "coordinator", "device_agent", "relay", "simulator", "benchmarks", "scripts", "studies")


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    others = [one for one in (given.vararg, given.kwarg) if one is not None]
    return {argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *others)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_section_of_arguments_names_arguments_of_its_function_only(folder: str):
    """It leaves out an argument about which there is no more to say than name and type do."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node) or ""
                described = _described(docstring, "Args")
                assert ("Args:\n" in docstring) == bool(described), f"{path}: {node.name} has an empty Args:"
                assert set(described) <= _arguments(node), f"{path}: {node.name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_of_a_module_run(path: Path):
    """Each docstring's example gives the output that it shows."""
    name = ".".join(("fedpatch", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    assert doctest.testmod(import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL).failed == 0


def _described(docstring: str, heading: str) -> list[str]:
    """Return the names that a section of a docstring describes."""
    _, _, section = docstring.partition(f"{heading}:\n")
    lines = itertools.takewhile(lambda line: line.startswith("    ") or not line, section.splitlines())
    return [found[1] for found in map(re.compile(r"    \*{0,2}(\w+): ").match, lines) if found]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_described_attributes_exist(path: Path):
    """A section `Attributes:` names fields, properties or `self.NAME` of its class."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            known = {found.attr for found in ast.walk(node) if isinstance(found, ast.Attribute)}
            fields = (found.target for found in node.body if isinstance(found, ast.AnnAssign))
            known |= {field.id for field in fields if isinstance(field, ast.Name)}
            known |= {found.name for found in node.body if isinstance(found, ast.FunctionDef)}
            assert set(_described(ast.get_docstring(node) or "", "Attributes")) <= known, node.name
