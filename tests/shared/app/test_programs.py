"""The installed programs, while they import their modules."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.support.paths import ROOT

PROGRAMS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
# Ctrl-C during the import of typer, within exec(), as in a data class.
INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
class Interrupt:
    def find_spec(self, name, *_):
        if name == "typer":
            exec("signal.raise_signal(signal.SIGINT)")
sys.meta_path.insert(0, Interrupt())
from {module} import {name}
{name}()
"""


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_that_is_interrupted_during_its_imports_ends_with_the_code_of_ctrl_c_and_no_traceback(program: str):
    module, name = PROGRAMS[program].split(":")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module, name=name)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.medium
@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs_its_command_line(program: str):
    module, name = PROGRAMS[program].split(":")
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import {name}; {name}()", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, program, "")
