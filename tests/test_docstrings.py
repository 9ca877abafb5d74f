"""Docstrings of the public rooms: `Args:` where a reader needs them, and examples that run."""

from __future__ import annotations

import ast
import doctest
import itertools
import re
from collections.abc import Iterator
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
MANY_ARGUMENTS = 3
# Of a transition's handler: the table of transitions describes them.
OF_HANDLERS = ["job", "event", "now"]


def _is_protocol(node: ast.ClassDef) -> bool:
    """The classes that a protocol describes the calls of have the words for them."""
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def _public_functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not _is_protocol(node):
            yield from _public_functions(node)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def _arguments(function: ast.FunctionDef) -> list[str]:
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_public_function_with_three_arguments_describes_them(path: Path):
    """An `Args:` section exists; ruff (D417) then checks that it names each argument."""
    without = [
        function.name
        for function in _public_functions(ast.parse(path.read_text("utf-8")))
        if len(_arguments(function)) >= MANY_ARGUMENTS
        and _arguments(function) != OF_HANDLERS
        and "Args:" not in (ast.get_docstring(function) or "")
    ]
    assert without == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_of_a_module_run(path: Path):
    """Each docstring's example gives the output that it shows."""
    name = ".".join(("fedpatch", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    assert doctest.testmod(import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL).failed == 0


def _described_attributes(docstring: str) -> list[str]:
    _, _, section = docstring.partition("Attributes:\n")
    lines = itertools.takewhile(lambda line: line.startswith("    ") or not line, section.splitlines())
    return [found[1] for found in map(re.compile(r"    (\w+): ").match, lines) if found]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_described_attributes_exist(path: Path):
    """A section `Attributes:` names fields, properties or `self.NAME` of its class."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            known = {found.attr for found in ast.walk(node) if isinstance(found, ast.Attribute)}
            fields = (found.target for found in node.body if isinstance(found, ast.AnnAssign))
            known |= {field.id for field in fields if isinstance(field, ast.Name)}
            known |= {found.name for found in node.body if isinstance(found, ast.FunctionDef)}
            assert set(_described_attributes(ast.get_docstring(node) or "")) <= known, node.name
