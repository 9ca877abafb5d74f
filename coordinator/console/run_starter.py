"""Starts runs from files of settings that the operator named at the start of the console.

Settings name code to load, files and a broker. So a page can only choose one of these files, and cannot change it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.shared.mqtt.url import parse_broker_url

START_S = 5.0
"""Time in which an error of a new run still reaches the page."""


class RunStarter:
    """Starts `fedpatch run` in a process of its own, which does not end with the console.

    Args:
        state_dir: The state directory.
        files: Files of settings, as for `fedpatch run --config`.

    Raises:
        UsageError: Two files have the same name, or one has a user name whose password a run would lack.
        ConfigError: Settings are wrong.
    """

    def __init__(self, state_dir: Path, files: Sequence[Path]) -> None:
        self._state_dir = state_dir.absolute()
        self._files = {path.stem: path.absolute() for path in files}
        if len(self._files) < len(files):
            raise UsageError("two files of --begin have the same name; rename one")
        for path in files:
            _need_password(path, load(RunSettings, file=path, environ=os.environ, flags={}))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # One start at a time. The thread is made now: the console lowers its priority later, for newer threads only.
        self._thread = ThreadPoolExecutor(1, "run starter")
        self._thread.submit(int).result()

    @property
    def names(self) -> list[str]:
        """Names of the files without their ending, sorted."""
        return sorted(self._files)

    def begin(self, name: str) -> str:
        """Start the run of a file, or resume its interrupted one; return the result in words.

        Raises:
            UsageError: There is no such file, its run is already running, or the run ended at once with an error.
            StateError: The state directory cannot be written.
        """
        return self._thread.submit(self._begin, name).result()

    def _begin(self, name: str) -> str:
        if name not in self._files:
            raise unknown_name("run", name, self.names)
        known = self._processes.get(name)
        if known is not None and known.poll() is None:
            raise UsageError(f"the run of {name} is at work already")
        command = [sys.executable, "-m", "fedpatch", "run", "--config", str(self._files[name])]
        command += ["--state-dir", str(self._state_dir)]
        log = self._state_dir / f"console-{name}.log"
        # Appended, because a run that an earlier console began may still write its messages there.
        with refusals_of(log), log.open("ab") as lines:
            earlier = lines.tell()
            process = self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=lines, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            threading.Thread(target=process.wait, name=f"run {name}", daemon=True).start()  # leaves no zombie
            return f"{name} has begun; its messages are in {log}"
        messages = log.read_bytes()[earlier:].decode("utf-8", "replace")
        last = (messages.splitlines() or [f"exit code {code}"])[-1]
        if code:
            raise UsageError(f"{name} has not begun: {last}")
        return f"{name} has ended: {last}"


def _need_password(path: Path, settings: RunSettings) -> None:
    """Raise UsageError for a user name without a password: a run that is begun later inherits no FEDPATCH_PASSWORD."""
    username = settings.username or parse_broker_url(settings.broker).username
    if username is not None and not (settings.password or settings.password_file or settings.cert_file):
        raise UsageError(
            f"{path}: user {username!r} has no password, and a run that the console begins gets none from the environment; "
            "name a file with it: password_file = PATH"
        )
