"""The commands `fedpatch` and `fedpatch-agent` as a user runs them: processes with output, error output and an exit code.

    done = run("fedpatch", "runs", "--state-dir", state)
    with Command("fedpatch", "run", "--rounds", 3, ...) as coordinator:
        coordinator.wait(lambda: "round 1/3" in coordinator.err, "has played a round")
        done = coordinator.interrupt()

Standard output and standard error are not terminals. The process ends with its `with`, also after an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.support.paths import ROOT
from tests.support.preloaded import NAMESPACE, PreloadedProcess, network_namespace

PATIENCE_S = 180.0
"""Enough for a few rounds on a very busy machine."""

_PATIENT_CLAIM = """
from fedpatch import cli
from fedpatch.coordinator.runtime import fleet_claim
fleet_claim.ANSWER_S = fleet_claim._ECHO_S = 100.0
cli.main()
"""
_STARTED_AS = {
    "fedpatch": ["-m", "fedpatch"],
    "fedpatch-agent": ["-m", "fedpatch.device_agent"],
    "fedpatch-relay": ["-m", "fedpatch.relay"],
    # Waits for another coordinator's answer even if the machine stalls for long.
    "fedpatch that waits for an answer": ["-c", _PATIENT_CLAIM],
}
_POLL_S = 0.02


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the interpreter or the loader reads before the program."""
    return {name: value for name, value in environment.items() if name.startswith(("LD_", "PYTHON", "FAKETIME"))}


_OURS_AT_START = _read_at_start(os.environ)


@dataclass(frozen=True)
class Done:
    """Exit code and output of an ended command; the code is minus the signal's number if a signal ended it."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document that is the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


def wait_for(
    running: Callable[[], bool], fits: Callable[[], object], problem: Callable[[], str], patience_s: float
) -> None:
    """Return once `fits()` is true; TimeoutError with the problem if it does not become true, or the process ends before."""
    give_up_at = time.monotonic() + patience_s
    while True:
        runs = running()  # read first: `fits()` may become true right before the process ends
        if fits():
            return
        if not runs or time.monotonic() > give_up_at:
            raise TimeoutError(f"the process {'still runs' if runs else 'has ended'}; {problem()}")
        time.sleep(_POLL_S)


class Command:
    """One process. Its environment is ours without fedpatch's settings, plus `environment`.

    A run serves no metrics by default, since all tests' runs would use the same port.

    Args:
        program: A key of `_STARTED_AS`.
        arguments: The command line after the program.
        cwd: Working directory.
        environment: Further environment variables.
        preloaded: Fork the command from a process that has its modules loaded, which saves two seconds of a processor. False
            for a test that reads the process's command line or environment in /proc. None: as `Command.preloads` says.
    """

    preloads = False
    """Set by the tests' conftest; benchmarks measure real starts."""

    def __init__(
        self,
        program: str,
        *arguments: object,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        preloaded: bool | None = None,
    ) -> None:
        self._preloaded = self.preloads if preloaded is None else preloaded
        self.line = [sys.executable, *_STARTED_AS[program], *map(str, arguments)]
        self._plain_line = list(self.line)
        self._cwd = cwd
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FEDPATCH_")}
        self._environment = {**ours, "FEDPATCH_METRICS": "none", **(environment or {})}
        self._files = contextlib.ExitStack()

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, fits: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        wait_for(lambda: self.running, fits, lambda: f"never: {what}; standard error:\n{self.err}", patience_s)

    def wait_err(self, text: str) -> None:
        """Return once `text` is on standard error."""
        self.wait(lambda: text in self.err, f"prints {text!r}")

    def done(self, patience_s: float = PATIENCE_S) -> Done:
        """Wait until the process has ended by itself."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.line} still runs; standard error:\n{self.err}") from None
        return Done(code, self.out, self.err)

    def interrupt(self) -> Done:
        """Press Ctrl-C, which reaches all processes of a terminal, and wait for the end."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self.done()

    def terminate(self) -> Done:
        """Send SIGTERM, as a service manager would, and wait for the end."""
        self.ask_to_end()
        return self.done()

    def ask_to_end(self) -> None:
        """Send SIGTERM, and do not wait."""
        self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        """Stop the process without a notice to its peers."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Command:
        directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-command-")))
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = self._started(out, err)
        return self

    def _started(self, out: IO[bytes], err: IO[bytes]) -> PreloadedProcess | subprocess.Popen[bytes]:
        """Fork the command; start a new interpreter if the line is wrapped, or for settings that a start reads."""
        _, how, module, *arguments = self.line
        plain = self._preloaded and self.line == self._plain_line and how == "-m"
        at_home = network_namespace() == NAMESPACE
        if plain and at_home and _read_at_start(self._environment) == _OURS_AT_START:
            return PreloadedProcess(
                module, arguments, cwd=self._cwd, environment=self._environment, stdout=out, stderr=err
            )
        return subprocess.Popen(
            self.line,
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"{' '.join(self.line[3:])}: standard error:\n{self.err[-4000:]}")
        if self.running:
            self.kill()
        self._files.close()


def run(program: str, *arguments: object, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> Done:
    """Run a command to its end."""
    with Command(program, *arguments, cwd=cwd, environment=environment) as command:
        return command.done()
