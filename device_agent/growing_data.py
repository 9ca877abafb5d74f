"""A device's data as its task reads them: once, and again before a round when they have changed.

A task whose data grow says so by `Task.data_version`. It is asked before each round, and before the data are read, not
after: what is written while they are read makes another version, and is there for the round after. Where the task makes no
validation part, it is split off here (shared.validation).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import DataError, FedpatchError
from shared.task import DeviceData, Task
from shared.validation import split_for

log = logging.getLogger("fedpatch.training")


class GrowingData:
    """The data of one device, by its data spec; `root` is the folder for data files."""

    def __init__(self, task: Task, spec: str, root: Path) -> None:
        self._task, self._spec, self._root = task, spec, root
        self._version: str | int | None = None

    def load(self) -> DeviceData:
        """All data there are now. Raises what the task raises where that is an error of ours, else DataError."""
        with self.failing_in_words():
            return self._load(self._asked_version())

    def load_changed(self) -> DeviceData | None:
        """All data there are now, None where they are those of the last `load`; errors as there.

        After an error they still count as changed, and the next call reads them again.
        """
        with self.failing_in_words():
            version = self._asked_version()
            return None if version is None or version == self._version else self._load(version)

    def _asked_version(self) -> str | int | None:
        ask = self._task.data_version
        return None if ask is None else ask(self._spec, self._root)

    def _load(self, version: str | int | None) -> DeviceData:
        data = split_for(self._task, self._task.load_data(self._spec, self._root))
        self._version = version
        return data

    @contextmanager
    def failing_in_words(self) -> Iterator[None]:
        """For the task's own code: whatever it raises within becomes a DataError, unless it is an error of ours."""
        try:
            yield
        except FedpatchError:
            raise
        except Exception as error:  # the task is the user's: whatever it raises is told in one sentence
            log.error("the task's own code failed", exc_info=error)
            in_one_line = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(f"task {self._task.name!r} failed with data {self._spec!r}: {in_one_line}") from error
