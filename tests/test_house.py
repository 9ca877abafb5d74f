"""Rules of the house that no single file can keep by itself; pyproject.toml holds those that tools know by name."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("coordinator", "device_agent", "shared", "simulator")


def _contract(contract_id: str) -> dict:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return next(c for c in config["tool"]["importlinter"]["contracts"] if c.get("id") == contract_id)


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """Who imports whom, among our own modules."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_import_rules_hold():
    """Every contract of import-linter in pyproject.toml is kept."""
    lint_imports = Path(sysconfig.get_path("scripts")) / "lint-imports"
    result = subprocess.run(
        [lint_imports, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_pure_modules_import_only_pure_modules_of_ours(imports):
    """No pure module reaches the network, a disk or a clock through another module of ours."""
    pure = set(_contract("pure")["source_modules"])
    packages = {name for name in imports.modules if imports.find_children(name)}
    reached = {
        f"{module} -> {imported}"
        for module in pure
        for imported in imports.find_modules_directly_imported_by(module) - pure - packages
    }
    assert not reached


def test_importing_the_agent_loads_neither_torch_nor_numpy():
    """The device process that talks to the network cannot hold a model: it has nothing to hold one with."""
    agent = "device_agent.agent, device_agent.cli, device_agent.job, device_agent.trainer"
    program = f"import sys, {agent}; print(*sorted({{'numpy', 'torch'}} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("module", ["coordinator", "device_agent"])
def test_python_m_never_takes_a_module_from_the_folder_it_is_called_in(tmp_path, module):
    """Somebody's own `shared` there is none of ours; test_wheel.py tries the same with what is installed."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("raise SystemExit('the wrong shared')\n")
    command = [sys.executable, "-m", module, "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_house_plan_names_every_file():
    """ARCHITECTURE.md is a description of what is there, and of nothing that is not."""
    named = set(re.findall(r"[a-z0-9_]+\.py", (ROOT / "ARCHITECTURE.md").read_text("utf-8")))
    folders = (*PACKAGES, "ansible")
    files = {
        path.name for folder in folders for path in (ROOT / folder).rglob("*.py") if not path.name.startswith("__")
    }
    assert (files - named, named - files - {Path(__file__).name, "test_privacy.py"}) == (set(), set())


def test_every_package_says_that_it_is_typed():
    """A package of ours carries py.typed, so that mypy believes its annotations wherever it is installed."""
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").exists()] == []
