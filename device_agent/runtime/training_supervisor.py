"""The agent's side of the training process: starts it, sends it commands, turns its answers into events.

The process is kept, since importing torch takes a Raspberry Pi half a minute; if it was stopped or died, the next round
starts another. This file imports neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from fedpatch.device_agent.job.job_effects import ContinueTraining, JobKey, PauseTraining
from fedpatch.device_agent.job.training_messages import (
    Answer,
    CancelTraining,
    Command,
    Evaluated,
    MakeModel,
    MaskCommand,
    Masked,
    SetupFailed,
    TrainCancelled,
    TrainCommand,
    Trained,
    TrainFailed,
    WorkerSetup,
    read_answer,
    write_message,
)
from fedpatch.device_agent.runtime.training_launch import Launch, start_program
from fedpatch.device_agent.training.resource_limits import limit_in_words
from fedpatch.shared.errors import WireError

STOP_TIMEOUT_S = 5.0
LAST_WORDS_TIMEOUT_S = 2.0
"""Seconds that a process of the task's code may keep our pipes open after the end of training."""

_PAGES_RESIDENT = 1  # of /proc/PID/statm
_MIB = 2**20
_ANSWERS_OF_ROUNDS = Trained | Evaluated | Masked | TrainFailed | TrainCancelled
_LEVELS = {name: logging.getLevelNamesMapping()[name] for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}

log = logging.getLogger("fedpatch.trainer")


@dataclass(frozen=True)
class Died:
    """A training process ended by itself, or was `killed`; `detail` has the cause.

    `lost` are the rounds that this process had not answered; another process may be running already.
    """

    detail: str
    lost: tuple[JobKey, ...] = ()
    killed: bool = False


TrainerEvent = Answer | Died


class Trainer:
    """Supervises one training process at a time and turns its answers into events.

    Each `start` that starts a process leads to one `Ready`, `SetupFailed` or `Died`. Each `train` leads to any number of
    `TrainProgress`, then to one `Trained`, `Evaluated`, `TrainFailed`, `TrainCancelled`, or a `SetupFailed` or `Died` that
    names its round. Each `mask` leads to one `Masked` or `TrainFailed`, or to such a `SetupFailed` or `Died`. `ModelMade`
    follows if `Trained` announces it, and after `make_model`, unless the process ends.

    Args:
        setup: First command of each process.
        events: Takes the events; called on threads of this object, so it should only enqueue.
        launch: Starts a process.
    """

    def __init__(
        self, setup: WorkerSetup, events: Callable[[TrainerEvent], None], launch: Launch = start_program
    ) -> None:
        self.setup = setup
        self._launch = launch
        self._events = events
        self._lock = threading.Lock()
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        with self._lock:
            return self._child.process.pid if self._child else None

    def resident_mib(self) -> float:
        """Memory of the process in MiB, 0 where there is none."""
        return resident_mib(self.pid)

    def start(self) -> None:
        """Start the process, unless there is one; OSError where the system allows none."""
        with self._lock:
            self._running_child()

    def train(self, command: TrainCommand) -> None:
        """Begin a round, in a new process where there is none; OSError where the system allows none."""
        with self._lock:
            self._running_child().train(command)

    def mask(self, command: MaskCommand) -> None:
        """Mask the vector of a round, in a new process where there is none; OSError where the system allows none."""
        with self._lock:
            self._running_child().train(command)

    def make_model(self, command: MakeModel) -> None:
        """Make the personal model of an earlier round, in a new process where there is none; OSError as above."""
        with self._lock:
            self._running_child().send(command)

    def pause(self) -> None:
        """Let the round wait before its next step, holding its memory but no processor."""
        self._tell(PauseTraining())

    def go_on(self) -> None:
        """End the pause of a round."""
        self._tell(ContinueTraining())

    def cancel(self) -> None:
        """Stop the round at its next step; without a process there is nothing to stop."""
        self._tell(CancelTraining())

    def stop(self) -> None:
        """End the process and wait for it. Open commands stay unanswered."""
        with self._lock:
            child, self._child = self._child, None
        if child:
            child.stop()

    def _tell(self, command: Command) -> None:
        with self._lock:
            if self._child:
                self._child.send(command)

    def _running_child(self) -> _Child:
        if self._child is None:
            self._child = _Child(self.setup, self._events, self._forget, self._launch)
        return self._child

    def _forget(self, child: _Child) -> bool:
        """Return whether `child` was still the process in use."""
        with self._lock:
            current = self._child is child
            if current:
                self._child = None
            return current


def resident_mib(pid: int | None) -> float:
    """Memory of a process in MiB, 0 where there is none."""
    if pid is None:
        return 0.0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[_PAGES_RESIDENT])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


class _Child:
    """One run of the training process, with a thread for its input and one for each of its two outputs."""

    def __init__(
        self,
        setup: WorkerSetup,
        events: Callable[[TrainerEvent], None],
        forget: Callable[[_Child], bool],
        launch: Launch,
    ) -> None:
        self._events = events
        self._forget = forget
        self._limit = limit_in_words(setup)
        self.process = launch()
        self._owed: list[JobKey] = []
        self._last_words = ""
        self._log_thread = threading.Thread(target=self._copy_log, name="trainer-log", daemon=True)
        self._answer_thread = threading.Thread(target=self._read_answers, name="trainer-answers", daemon=True)
        # A command with a model is larger than the pipe, and a process that loads torch reads nothing for seconds.
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._command_thread = threading.Thread(target=self._write_commands, name="trainer-commands", daemon=True)
        for thread in (self._log_thread, self._answer_thread, self._command_thread):
            thread.start()
        self.send(setup)

    def send(self, command: Command) -> None:
        """Let a command be written. If the process has just died, its end is the answer."""
        self._commands.put(command)

    def train(self, command: TrainCommand | MaskCommand) -> None:
        """Send a command that must be answered from now on."""
        self._owed.append(command.key)
        self.send(command)

    def stop(self) -> None:
        """End the process by closing its input, and wait for it."""
        self._commands.put(None)
        self._wait()
        for thread in (self._command_thread, self._answer_thread, self._log_thread):
            if thread is not threading.current_thread():
                thread.join(LAST_WORDS_TIMEOUT_S)

    def _write_commands(self) -> None:
        """Write commands until None, which closes the input; the process then ends."""
        while (command := self._commands.get()) is not None:
            with contextlib.suppress(OSError):  # the process has ended
                write_message(self.process.stdin, command)
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _read_answers(self) -> None:
        failed: SetupFailed | None = None
        with self.process.stdout as stream:
            try:
                while failed is None and (answer := read_answer(stream)) is not None:
                    if isinstance(answer, SetupFailed):
                        failed = answer
                        continue
                    if isinstance(answer, _ANSWERS_OF_ROUNDS) and answer.key in self._owed:
                        self._owed.remove(answer.key)
                    self._events(answer)
            except WireError as error:
                log.error("%s", error)
                self.process.kill()
            self._wait()
        self._commands.put(None)
        # A forgotten process gets no more commands: the rounds that it has not answered are lost.
        if self._forget(self):
            lost = tuple(self._owed)
            died = Died(self._how_it_ended(), lost, killed=self.process.returncode < 0)
            self._events(replace(failed, lost=lost) if failed else died)

    def _copy_log(self) -> None:
        """Copy standard error into the log; a first word that is a level sets the level of its line."""
        level = logging.INFO
        with self.process.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                self._last_words = text or self._last_words
                word, _, message = text.partition(" ")
                if word in _LEVELS:
                    level, text = _LEVELS[word], message
                log.log(level, "%s", text)

    def _wait(self) -> None:
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _how_it_ended(self) -> str:
        code = self.process.returncode
        if code < 0:
            hint = "; out of memory?" if code == -signal.SIGKILL else self._limit
            return f"the training process was ended by {signal.Signals(-code).name}{hint}"
        self._log_thread.join(LAST_WORDS_TIMEOUT_S)
        message = f"; last output: {self._last_words[:200]}" if self._last_words else ""
        return f"the training process ended with exit code {code}{message}{self._limit}"
