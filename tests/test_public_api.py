"""The public API: the names in `fedpatch.__all__`, light to import and documented with examples that run."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import fedpatch

NAMES = [name for name in fedpatch.__all__ if name != "__version__"]


def _documented(name: str) -> list[tuple[str, Any]]:
    """The object itself, or the public functions and classes of a module."""
    found = getattr(fedpatch, name)
    if not isinstance(found, ModuleType):
        return [(name, found)]
    return [
        (f"{name}.{one}", value)
        for one, value in vars(found).items()
        if one in found.__all__ and (inspect.isfunction(value) or inspect.isclass(value))
    ]


DOCUMENTED = [one for name in NAMES for one in _documented(name)]


def test_import_of_fedpatch_loads_neither_numpy_nor_torch():
    """An agent's process, and a script that only uses an error class, need neither."""
    heavy = {"numpy", "torch", "onnxruntime", "pandas", "IPython"}
    program = f"import sys, fedpatch; dir(fedpatch); print(*sorted({heavy} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "\n"


EXTRAS = {
    "anyio",
    "h11",
    "jinja2",
    "starlette",
    "uvicorn",
    "opentelemetry",
    "mlflow",
    "tensorboard",
    "wandb",
    "pandas",
    "IPython",
}
ROOMS = {"coordinator.api", "coordinator.console.server", "device_agent.bus.service", "shared.scripting.jobs"}


@pytest.mark.parametrize(
    ("process", "unused"),
    [
        # importlib.metadata takes 2 MB with the modules that it imports; a broker's client imports some of them later.
        ("fedpatch.cli, fedpatch.coordinator.storage.run_registry", {"numpy", "psycopg"}),
        ("fedpatch.cli", {"importlib.metadata", "email", "numpy", "sqlalchemy"}),
        ("fedpatch.device_agent.cli.main", {"importlib.metadata", "email", "numpy", "sqlalchemy"}),
        (
            "fedpatch.device_agent.cli.main, fedpatch.device_agent.runtime.agent",
            {"importlib.metadata", "numpy", "torch", "sqlalchemy"},
        ),
        ("fedpatch.coordinator.runtime.run_or_resume, fedpatch.coordinator.console.beside", {"torch", "psycopg"}),
    ],
    ids=["command that reads runs", "command", "agent command", "agent", "coordinator"],
)
def test_process_imports_nothing_of_the_console_the_api_trackers_traces_and_the_bus(process, unused):
    names = EXTRAS | {f"fedpatch.{room}" for room in ROOMS} | unused
    program = f"import sys, {process}; print(*sorted({names} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "\n"


@pytest.mark.parametrize("name", NAMES)
def test_public_name_can_be_imported(name):
    assert getattr(import_module("fedpatch"), name) is not None
    assert name in dir(fedpatch)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Tusk'"):
        _ = fedpatch.Tusk


@pytest.mark.parametrize(("name", "found"), DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_public_object_has_args_and_an_example(name, found):
    """`Args:` wherever there are arguments, `Returns:` wherever a function returns something, `Raises:` and `Example:`."""
    text = inspect.getdoc(found) or ""
    takes_arguments = inspect.isfunction(found) or "__init__" in vars(found)
    if takes_arguments and inspect.signature(found).parameters:
        assert "Args:" in text
    if inspect.isfunction(found):
        assert "Returns:" in text
    assert "Example:" in text


@pytest.mark.medium
@pytest.mark.parametrize(("name", "found"), DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_example_of_a_public_object_runs(name, found, monkeypatch):
    monkeypatch.setenv("FEDPATCH_DATA", "/nowhere")  # an example sets it
    examples = doctest.DocTestParser().get_doctest(inspect.getdoc(found) or "", {}, name, None, None)
    assert examples.examples
    results = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(examples)
    assert results.failed == 0
