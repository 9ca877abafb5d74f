"""The training process: the only one with torch, a device's data and its patch. It has no network.

    python -P -m fedpatch.device_agent.training.training_process

It reads commands from standard input and writes answers to standard output (device_agent.job.training_messages). `-P` keeps
the current directory from shadowing fedpatch's own modules. Output of the user's task and the log go to standard error. The
process ends when its input ends: it only writes the global model that it holds, and does not outlive its agent for longer.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from msgspec import UNSET

from fedpatch.device_agent.job.job_effects import ContinueTraining, PauseTraining
from fedpatch.device_agent.job.training_messages import (
    Answer,
    CancelTraining,
    Evaluated,
    MakeModel,
    MaskCommand,
    Masked,
    ModelHeld,
    ModelMade,
    Ready,
    SetupFailed,
    TrainCancelled,
    TrainCommand,
    Trained,
    TrainFailed,
    TrainProgress,
    WorkerSetup,
    read_command,
    write_message,
)
from fedpatch.device_agent.state.model_cache import BufferedModelCache, ModelCache
from fedpatch.device_agent.training.failure_cause import cause_of, tells_of_memory
from fedpatch.device_agent.training.forked_work import run_forked
from fedpatch.device_agent.training.network_filter import close_descriptors, close_network
from fedpatch.device_agent.training.resource_limits import apply_limits, give_memory_back, limit_in_words
from fedpatch.shared.app.formatting import printable
from fedpatch.shared.errors import FedpatchError, StateError, UpdateRefused, UsageError, WireError
from fedpatch.shared.tasks.bundled.downloads import fetch_absent_files
from fedpatch.shared.tasks.deferred_imports import defer_imports, load_deferred
from fedpatch.shared.tasks.task import use_data_root
from fedpatch.shared.wire.reason_codes import FailReason

if TYPE_CHECKING:
    from fedpatch.device_agent.training.device_data import ReloadingDataset
    from fedpatch.device_agent.training.local_trainer import LocalTrainer
    from fedpatch.device_agent.training.local_update import LocalUpdate
    from fedpatch.device_agent.training.model_export import ModelExport

PROGRESS_EVERY_S = 0.2
MAX_DETAIL = 500

log = logging.getLogger("fedpatch.training")


class TrainingControl:
    """Commands of the agent to a training: pause, continue, cancel."""

    def __init__(self) -> None:
        self._cancelled = False
        self._may_go = threading.Event()
        self._may_go.set()

    def take(self, command: PauseTraining | ContinueTraining | CancelTraining) -> None:
        """Take a command; called on the thread that reads commands."""
        self._cancelled |= isinstance(command, CancelTraining)
        if isinstance(command, PauseTraining) and not self._cancelled:
            self._may_go.clear()
        else:
            self._may_go.set()

    def cancelled(self) -> bool:
        """Return whether the training is cancelled; called before each batch, and blocks during a pause."""
        self._may_go.wait()
        return self._cancelled

    def stopped(self) -> bool:
        """Return whether the training is paused or cancelled, without waiting: a pause does not hold a finished update back."""
        return self._cancelled or not self._may_go.is_set()


Work = WorkerSetup | TrainCommand | MaskCommand | MakeModel
"""Commands that are done one after the other; the others act on the one in progress."""


class CommandReader:
    """Reads commands on a thread of its own, so that a cancel or the agent's end is noticed while torch works.

    At the end of the stream it calls `on_end`, and ends the process.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.on_end: Callable[[], None] = lambda: None
        self._commands: queue.SimpleQueue[tuple[Work, TrainingControl]] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self) -> tuple[Work, TrainingControl]:
        """Wait for a command, and return it with the control of its training."""
        return self._commands.get()

    def _read(self) -> None:
        control = TrainingControl()
        exit_code = 0
        try:
            while (command := read_command(self._stream)) is not None:
                if isinstance(command, MakeModel):
                    self._commands.put((command, TrainingControl()))  # a training before it may still be paused
                elif isinstance(command, Work):
                    control = TrainingControl()
                    self._commands.put((command, control))
                else:
                    control.take(command)
        except WireError as error:
            log.error("%s", error)
            exit_code = 1
        finally:
            _end_process(self.on_end, exit_code)


def _end_process(on_end: Callable[[], None], exit_code: int) -> NoReturn:
    """End the process after `on_end`, on any thread."""
    try:
        on_end()
    except FedpatchError as error:
        log.error("%s", error)
    finally:
        os._exit(exit_code)


class AnswerWriter:
    """Answers to the agent. Once the agent's end of the pipe is closed, it calls `on_end`, and ends the process."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.on_end: Callable[[], None] = lambda: None

    def send(self, answer: Answer) -> None:
        """Write one answer."""
        try:
            write_message(self._stream, answer)
        except OSError:
            _end_process(self.on_end, 0)


def main() -> int:
    """Serve one agent. Returns exit code 0, or that of the error that made the setup fail."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent, which then ends this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # programs that the task starts inherit the mask
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    inbox_stream, outbox_stream = _take_standard_streams()
    inbox, outbox = CommandReader(inbox_stream), AnswerWriter(outbox_stream)
    setup, _ = inbox.next()
    try:
        if not isinstance(setup, WorkerSetup):
            raise WireError(f"training channel: expected Setup, got {type(setup).__name__}")
        apply_limits(setup)
        use_data_root(Path(setup.data_root))  # where a task finds its file of frozen values
        network_open = _close_network(setup)
        local_update, ready = set_up(setup, _model_cache(setup, outbox))
        ready = replace(ready, network_open=network_open)
        inbox.on_end = outbox.on_end = local_update.flush
    except Exception as error:
        _log_unexpected(error)
        limit = limit_in_words(setup) if isinstance(setup, WorkerSetup) and _may_lack_memory(error) else ""
        outbox.send(SetupFailed(error_text(error) + limit, error.exit_code if isinstance(error, FedpatchError) else 1))
        return error.exit_code if isinstance(error, FedpatchError) else 1
    outbox.send(ready)
    while True:
        command, control = inbox.next()
        if isinstance(command, TrainCommand):
            done = answer(local_update, ready, command, control, outbox)
            outbox.send(done)
            if isinstance(done, Trained | Evaluated) and done.model_follows:
                # Only now, so that the update is sent meanwhile.
                local_update.make_model(control.stopped)
                outbox.send(ModelMade(command.key))
        elif isinstance(command, MaskCommand):
            outbox.send(masked(command))
        elif isinstance(command, MakeModel):
            local_update.make_model_again(command.command, command.manifest)
            outbox.send(ModelMade(command.command.key))


def _close_network(setup: WorkerSetup) -> str:
    """Fetch the files of a bundled task, then close the network; no code of the user's task has run before.

    Returns why the kernel leaves the network open; "" if it is closed. UsageError if `setup` requires it to be closed.
    """
    fetch_absent_files(setup.task_ref, setup.data, Path(setup.data_root))
    problem = close_network()
    if problem and setup.require_filter:
        raise UsageError(
            f'secure = "required" trains without network only, and {problem}; use a kernel with CONFIG_SECCOMP_FILTER on '
            "x86_64, aarch64 or 32-bit ARM, or set secure to allowed"
        )
    return problem


def _model_cache(setup: WorkerSetup, outbox: AnswerWriter) -> BufferedModelCache | None:
    """Return the cache of the global model, which reports its version to the agent."""
    if not setup.held_dir:
        return None
    return BufferedModelCache(Path(setup.held_dir), lambda version: outbox.send(ModelHeld(version)))


def set_up(setup: WorkerSetup, held: ModelCache | None = None) -> tuple[LocalUpdate, Ready]:
    """Find the task, import torch, load the data and build the model; `held` holds the global model between rounds."""
    defer_imports()
    try:
        return _set_up(setup, held)
    except Exception as error:
        # A task may build its model of tensors without storage, whose kernels are among the deferred modules.
        if not _is_unsupported(error) or not load_deferred():
            raise
    return _set_up(setup, held)


def _is_unsupported(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a NotImplementedError."""
    return error is not None and (isinstance(error, NotImplementedError) or _is_unsupported(error.__cause__))


def _set_up(setup: WorkerSetup, held: ModelCache | None) -> tuple[LocalUpdate, Ready]:
    from fedpatch.shared.tasks.task import find_task

    task = find_task(setup.task_ref)  # first, since a wrong name need not wait for torch

    import torch

    from fedpatch.device_agent.policy.private_floor import PrivateFloor
    from fedpatch.device_agent.state.patch_store import PatchStore
    from fedpatch.device_agent.training.device_data import ReloadingDataset
    from fedpatch.device_agent.training.local_trainer import LocalTrainer
    from fedpatch.device_agent.training.local_update import LocalUpdate
    from fedpatch.shared.task_checks.trial_training import require_trainable

    give_memory_back()  # before the data are loaded, so that the two do not add up
    torch.set_num_threads(setup.threads)
    holder = f"device {setup.device_id}"
    data = ReloadingDataset(task, setup.data, Path(setup.data_root), holder)
    with data.failing_in_words():
        trainer = LocalTrainer(task, data.load(partial(require_trainable, task, holder=holder)))
    store = PatchStore(Path(setup.patch_dir))
    PrivateFloor(store.directory, task.name, setup.private).check(trainer.schema)
    ready = Ready(
        task.name,
        trainer.schema.digest,
        trainer.num_examples,
        trainer.schema.specs,
        trainer.schema.frozen,
        num_validation=0 if trainer.validation_data is None else len(trainer.validation_data[0]),
    )
    export = _model_export(setup, trainer, data)
    if held:
        held.tidy()
    local_update = LocalUpdate(
        trainer,
        store,
        setup.device_id,
        export=export,
        data=data,
        held=held,
        private=setup.private,
        alone_every=setup.alone_every,
    )
    local_update.bound(setup.max_steps, setup.max_epochs, hides_examples=setup.hides_examples)
    give_memory_back()
    return local_update, ready


def _model_export(setup: WorkerSetup, trainer: LocalTrainer, data: ReloadingDataset) -> ModelExport | None:
    if not setup.models_dir:
        return None

    from fedpatch.device_agent.models.store import ModelStore
    from fedpatch.device_agent.training.model_export import ModelExport
    from fedpatch.shared.tasks.prepare import preparation_of

    store = ModelStore(Path(setup.models_dir))
    preparation = preparation_of(trainer.task, data.raw_shape)
    return ModelExport(
        trainer,
        store,
        setup.keep_margin,
        task_ref=setup.task_ref,
        preparation=preparation,
        run=_run_apart,
    )


def _run_apart(work: Callable[[], str]) -> str:
    """Make a model in a forked copy of this process, without the threads of torch's pool, which a fork does not copy."""

    def work_alone() -> str:
        import torch

        torch.set_num_threads(1)
        return work()

    return run_forked(work_alone)


def answer(
    local_update: LocalUpdate, ready: Ready, command: TrainCommand, control: TrainingControl, outbox: AnswerWriter
) -> Answer:
    """Do one round, and write its progress, a changed number of examples, and its result.

    Args:
        ready: The answer that announced the number of examples.
    """
    reported_at = -PROGRESS_EVERY_S

    def on_step(done: int, total: int) -> None:
        nonlocal reported_at
        now = time.monotonic()
        if done == total or now - reported_at >= PROGRESS_EVERY_S:
            reported_at = now
            outbox.send(TrainProgress(command.key, done, total))

    try:
        if (num_examples := local_update.take_new_data()) is not None:
            log.info("the data have changed: %d training examples", num_examples)
            outbox.send(replace(ready, num_examples=num_examples))
        if command.evaluate:
            evaluation = local_update.evaluate(command, control.cancelled)
            if evaluation is None:
                return TrainCancelled(command.key)
            return Evaluated(command.key, evaluation, _model_follows(local_update, command))
        done = local_update.run(command, on_step, control.cancelled)
    except Exception as error:
        _log_unexpected(error)
        reason = fail_reason(error)
        cause = cause_of(error) if reason is FailReason.TRAINING else UNSET
        return TrainFailed(command.key, reason, error_text(error), cause)
    if done is None:
        return TrainCancelled(command.key)
    return Trained(command.key, *done, model_follows=_model_follows(local_update, command))


def _model_follows(local_update: LocalUpdate, command: TrainCommand) -> bool:
    return local_update.makes_models and command.make_model


def masked(command: MaskCommand) -> Masked | TrainFailed:
    """Mask the vector of a round."""
    from fedpatch.device_agent.training.masked_update import mask_update

    try:
        return Masked(command.key, mask_update(command))
    except Exception as error:
        _log_unexpected(error)
        reason = FailReason.STORAGE if isinstance(error, StateError) else FailReason.MASKING
        return TrainFailed(command.key, reason, error_text(error))


def fail_reason(error: Exception) -> FailReason:
    """Return the code of an error for the coordinator."""
    if isinstance(error, WireError):
        return FailReason.DOWNLOAD
    if isinstance(error, StateError):
        return FailReason.STORAGE
    if isinstance(error, UpdateRefused) and error.reason == "not_finite":
        return FailReason.NOT_FINITE
    return FailReason.TRAINING


def error_text(error: Exception) -> str:
    """Return one line about an error, which a message can hold: "?" stands for a byte of a file's name that is no text."""
    text = str(error) if isinstance(error, FedpatchError) else f"{type(error).__name__}: {error}"
    return printable(" ".join(text.split()))[:MAX_DETAIL]


def _may_lack_memory(error: Exception) -> bool:
    """Return whether the limit of memory may have caused an error of the setup."""
    if not isinstance(error, FedpatchError):
        return True
    # Python's own C code may fail with a SystemError where memory runs out.
    cause = error.__cause__ or error
    return isinstance(cause, SystemError) or tells_of_memory(cause) or tells_of_memory(error)


def _log_unexpected(error: Exception) -> None:
    if not isinstance(error, FedpatchError):
        log.error("unexpected error", exc_info=error)


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take both ends of the channel: the task's code gets an empty standard input, and its output goes to the log."""
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    close_descriptors([commands.fileno(), answers.fileno()])
    return commands, answers


if __name__ == "__main__":
    os._exit(main())  # the inbox's thread still waits for input: the interpreter must not be torn down meanwhile
