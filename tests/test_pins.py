"""The versions that constraints.txt pins can be installed with each Python that the project promises."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.support.paths import ROOT

# The first release of each series: Debian 12 stays at 3.11.2, where a package that requires 3.11.5 cannot be installed.
OLDEST = ("3.11.0", "3.12.0", "3.13.0")


def _pins() -> dict[str, str]:
    """Return the version by name, for the pins that apply to this machine."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        one.name: str(one.specifier).removeprefix("==") for one in wanted if one.marker is None or one.marker.evaluate()
    }


def _asks_for(name: str, version: str) -> str | None:
    """Return the Pythons that this version requires, if this version is installed."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    wanted = found.metadata.json.get("requires_python")
    return str(wanted) if wanted and found.version.partition("+")[0] == version else None


def test_every_pin_can_be_had_with_the_oldest_python_of_each_series():
    """A version that requires a newer Python is not offered by pip, which then reports contradictory pins."""
    asked = {f"{name} {version}": _asks_for(name, version) for name, version in _pins().items()}
    known = {pin: SpecifierSet(wanted) for pin, wanted in asked.items() if wanted}
    if len(known) < len(asked) / 2:
        pytest.skip("too few of the pinned versions are installed here")
    assert [f"{pin}: {wanted}" for pin, wanted in known.items() if not all(map(wanted.contains, OLDEST))] == []


def test_the_promised_pythons_are_those():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    promised = SpecifierSet(project["requires-python"])
    assert all(map(promised.contains, OLDEST))
    assert not promised.contains("3.10.9")
    assert not promised.contains("3.14.0")
