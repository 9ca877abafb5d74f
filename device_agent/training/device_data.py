"""A device's data as its task reads them: at the start, and again before a round if they have changed.

A task with growing data has `Task.data_version`. It is called before each round, and before the data are read: data that are
written during the read then have another version, and are read in the next round. If the task makes no validation part, it is
split off here (shared.tasks.validation_split).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpatch.shared.errors import DataError, FedpatchError
from fedpatch.shared.task_checks.data_checks import Fitted, classes_without_validation, load_checked
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.validation_split import split_for

log = logging.getLogger("fedpatch.training")


class ReloadingDataset:
    """The prepared, cast and checked data of one device (shared.task_checks.data_checks).

    `raw_shape` is the shape of an input before the task's `prepare`. `root` is the folder for data files, `holder` the name
    of the device in errors.
    """

    def __init__(self, task: Task, spec: str, root: Path, holder: str = "this device") -> None:
        self._task, self._spec, self._root, self._holder = task, spec, root, holder
        self._casts: tuple[str, ...] = ()
        self.raw_shape: tuple[int, ...] = ()
        self._version: str | int | None = None

    def load(self, try_out: Callable[[DeviceData], None] = lambda data: None) -> DeviceData:
        """Load all present data. FedpatchErrors of the task pass; any other exception becomes a DataError.

        `try_out` gets the data before the validation part is split off, with the task's numbers of rows, and once more those
        after the split if only one training example is left.
        """
        with self.failing_in_words():
            return self._load(self._asked_version(), try_out)

    def load_changed(self) -> DeviceData | None:
        """Load all present data; return None if they are those of the last `load`. Errors are those of `load`.

        After an error the data count as changed, and the next call reads them again.
        """
        with self.failing_in_words():
            version = self._asked_version()
            return None if version is None or version == self._version else self._load(version)

    def _asked_version(self) -> str | int | None:
        ask = self._task.data_version
        return None if ask is None else ask(self._spec, self._root)

    def _load(self, version: str | int | None, try_out: Callable[[DeviceData], None] = lambda data: None) -> DeviceData:
        fitted = load_checked(self._task, self._spec, self._root, self._holder, self._model_dtype)
        self._tell_casts(fitted)
        self._version, self.raw_shape = version, fitted.raw_shape
        try_out(fitted.data)
        # After the checks: their messages name rows of the data as the task loaded them.
        split = split_for(self._task, fitted.data)
        if lacking := classes_without_validation(self._task, split):
            log.warning(
                "validation data lack classes of the test data (%s): they choose the personal model by the others",
                ", ".join(lacking),
            )
        if len(split.train_x) == 1 < len(fitted.data.train_x):
            try_out(split)  # batch norm learns from two examples, not from the one that is left
        return split

    def _model_dtype(self) -> str:
        from fedpatch.shared.tasks.torch_model import floating_dtype

        return floating_dtype(self._task)

    def _tell_casts(self, fitted: Fitted) -> None:
        if fitted.casts != self._casts:
            for words in fitted.casts:
                log.info("%s", words)
        self._casts = fitted.casts

    @contextmanager
    def failing_in_words(self) -> Iterator[None]:
        """A context for the task's own code: an exception in it becomes a DataError, unless it is a FedpatchError."""
        try:
            yield
        except FedpatchError:
            raise
        except Exception as error:  # the task is the user's: any error becomes one sentence
            log.error("the task's own code failed", exc_info=error)
            in_one_line = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(f"task {self._task.name!r} failed with data {self._spec!r}: {in_one_line}") from error
