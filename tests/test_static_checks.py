"""Style, layout, types, import rules and insecure code, beside the other tests: each check is a target of the Makefile."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.paths import ROOT

QUICK, LONGER = ("types", "style", "imports"), ("ansible-lint", "audit")


@pytest.mark.parametrize("target", [*QUICK, *(pytest.param(one, marks=pytest.mark.medium) for one in LONGER)])
def test_make_target_finds_no_problem(target: str):
    """`audit` includes `bandit`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--silent", target], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"make {target}\n{done.stdout}{done.stderr}"
