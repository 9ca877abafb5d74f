"""The personal model of this device, for applications in Python. It needs NumPy and onnxruntime, and no torch.

    from fedpatch.device_agent.models.personal import PersonalModel

    model = PersonalModel.open("/var/lib/fedpatch-agent", "digits")
    model.predict(images)             # outputs, one row per image
    model.classify(images)            # ["7", "3", ...]
    model.classify("today.csv")       # of a task with `readings`: a file of raw readings
    model.metadata.user_accuracy      # on the device's test data
    model.reload_if_newer()           # now and then: True after a round has given another model

Inputs are raw, as the task's `load_data` returns them. If the task has a `prepare`, it is imported and applied.
docs/how-to/personal-model.md has more, also for programs in other languages.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from fedpatch.device_agent.models.inputs import require_shape
from fedpatch.device_agent.models.store import CURRENT, MODELS_DIRECTORY, ModelStore
from fedpatch.shared.errors import DataError, StateError, UsageError
from fedpatch.shared.onnx.runtime import OnnxModel
from fedpatch.shared.tasks.examples import Examples, as_examples, from_arrays, from_frame, read, without_missing
from fedpatch.shared.tasks.input_statistics import differences, doubtful_classes
from fedpatch.shared.tasks.model_metadata import (
    INPUTS_FILE,
    METADATA_FILE,
    MODEL_FILE,
    ModelMetadata,
    Preparation,
    from_json,
    inputs_from_json,
)
from fedpatch.shared.tasks.prepare import prepared, require_same_prepare
from fedpatch.shared.tasks.reading.array_values import numbers_of
from fedpatch.shared.tasks.reading.cell_values import RefusedValue
from fedpatch.shared.tasks.reading.readings_format import ReadingsFormat
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.tensors.arrays import Array

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("fedpatch.models")

# The present model may be replaced and removed after its link was read and before its files are read.
_ATTEMPTS = 5


class PersonalModel:
    """The personal model of a device, ready for predictions; it needs NumPy and onnxruntime, and no torch.

    Args:
        path: Directory of the model's files; `PersonalModel.open` finds it.
        threads: Threads of onnxruntime.
        task: The task that the model was trained with. It is needed only if it has a `prepare`; unless given, it is found by
            the name in the agent's configuration.

    Attributes:
        path: Directory of the model's files.
        metadata: Where the model comes from: task, run, round, user accuracy, input shape.

    Raises:
        StateError: The model is damaged or absent.

    Example:
        >>> from fedpatch import PersonalModel
        >>> model = PersonalModel.open("/var/lib/fedpatch-agent", "digits")  # doctest: +SKIP
        >>> model.classify(images)  # doctest: +SKIP
        ['7', '3']
    """

    def __init__(self, path: Path, *, threads: int = 1, task: Task | None = None) -> None:
        """Read the model in the directory `path`. StateError where it is damaged or absent."""
        self._threads = threads
        self._task = task
        self._same_prepare = False
        self._store: tuple[ModelStore, str] | None = None
        self.path = path
        self.metadata, self._model = _read(path, threads)

    @classmethod
    def open(cls, state_dir: str | Path, task: str | Task = "", *, threads: int = 1) -> PersonalModel:
        """Open the present model of a task.

        Args:
            task: Name of the task, or the task itself, whose `prepare` is then applied. "": the only task with models.
            threads: Threads of onnxruntime.

        Raises:
            UsageError: There is no model, or several tasks have one and none is named.
            StateError: The model is damaged, or the link to it is lost.
        """
        store = ModelStore(Path(state_dir).expanduser() / MODELS_DIRECTORY)
        given = task if isinstance(task, str) else task.name
        name = given or only_task(store, Path(state_dir))
        model = cls._read_present(store, name, threads, None if isinstance(task, str) else task)
        if model is None and any(one.metadata for one in store.versions(name)):
            raise StateError(
                f"{Path(state_dir) / MODELS_DIRECTORY / name / CURRENT}: is lost; `fedpatch-agent rollback` makes it anew"
            )
        if model is None:
            raise UsageError(
                f"{Path(state_dir) / MODELS_DIRECTORY / name}: there is no personal model yet; it comes with the first round "
                "whose update the coordinator takes (see keep_models)"
            )
        model._store = (store, name)
        return model

    def examples(self, readings: str | Path | Array | pd.DataFrame) -> Examples:
        """Return the examples of raw readings, cut into the windows of the task; `times` has the time of each.

        Args:
            readings: A file or folder as the task's `load_data` reads it, with or without target and header; a pandas frame
                with the columns of the inputs; or an array of shape (n, inputs) of readings at equal times.

        Raises:
            UsageError: The task does not declare its readings.
            DataError: No example is left.
        """
        return examples_of(readings, self.metadata)

    def predict(self, inputs: Array | Examples | pd.DataFrame | str | Path, *, prepared: bool = False) -> Array:
        """Return the model's outputs for `inputs`, examples first in both; inputs unlike those of training are logged.

        So are answers of classes on which this device never trained, or of which it has no test example.

        Args:
            inputs: Raw inputs, to which the task's `prepare` is applied if it has one; or a file, folder or frame of readings.
            prepared: Whether `prepare` was applied already.

        Raises:
            DataError: inputs of another shape or kind, or that hold NaN or an infinity once they are prepared.
            UsageError: the task's `prepare` is needed and not available, or differs from that of training.
        """
        if isinstance(inputs, str | Path) or self._is_frame_of_readings(inputs):
            inputs = self.examples(inputs)
        raw = inputs.x if isinstance(inputs, Examples) else inputs
        ready = self.prepare(raw, prepared=prepared)
        for words in self.differences(ready):
            log.warning("%s", words)
        outputs = self.run(ready)
        for words in self.doubts(outputs):
            log.warning("%s", words)
        return outputs

    def _is_frame_of_readings(self, inputs: object) -> TypeGuard[pd.DataFrame]:
        form = self.metadata.readings
        return form is not None and {*form.inputs} <= {*getattr(inputs, "columns", ())}

    def prepare(self, inputs: Array, *, prepared: bool = False) -> Array:
        """Return prepared inputs. Arguments and errors are those of `predict`."""
        known = self.metadata.prepare
        try:
            ready = numbers_of(inputs)
        except RefusedValue as why:
            raise DataError(f"inputs: the array {why}") from None
        if known is not None and not prepared:
            ready = self._prepared(ready, known)
        else:
            require_shape(ready, self.metadata.input_shape, self.metadata.readings, "inputs")
        if ready.dtype.kind == "f":
            bad = np.argwhere(~np.isfinite(ready))
            if len(bad):
                place = ", ".join(map(str, bad[0][1:]))
                form = self.metadata.readings
                if form is not None and ready.ndim in (2, 3) and ready.shape[1] == len(form.inputs):
                    place += f" (input {form.inputs[bad[0][1]]})"
                raise DataError(
                    f"row {bad[0][0]} of the inputs holds {ready[tuple(bad[0])]} at [{place}]; fill it, or let the task's "
                    "`prepare` fill it"
                )
        return ready

    def run(self, ready: Array) -> Array:
        """Return the model's outputs for prepared inputs."""
        return self._model.run(ready)

    def differences(self, ready: Array) -> list[str]:
        """Return the differences of prepared inputs from those of training, a sentence for each."""
        known = self.metadata.inputs
        if known is None or ready.shape[1:] != self.metadata.input_shape or not len(ready):
            return []
        form = self.metadata.readings
        found = differences(ready, known, () if form is None else form.inputs)
        if not found or self.metadata.prepare is not None:
            return found
        return [f"{words}; give inputs as the task's load_data gives them, scaled alike" for words in found]

    def doubts(self, outputs: Array) -> list[str]:
        """Return a sentence for answers on which this device never trained, and for those that it could not judge."""
        known = self.metadata
        return [] if known.inputs is None else doubtful_classes(outputs, known.inputs, known.class_names)

    def _prepared(self, raw: Array, known: Preparation) -> Array:
        require_shape(raw, known.raw_shape, self.metadata.readings, "raw inputs")
        if self._task is None:
            self._task = self._find_task()
        if not self._same_prepare:
            require_same_prepare(self._task, known)
            self._same_prepare = True
        return prepared(self._task, raw, "the inputs")

    def _find_task(self) -> Task:
        ref = self.metadata.task_ref or self.metadata.task
        try:
            return find_task(ref)
        except UsageError as error:
            raise UsageError(
                f"the model takes inputs that `prepare` of task {self.metadata.task!r} made of raw ones, and the task cannot "
                f"be found here: {error}; or say that the inputs are prepared already"
            ) from error

    def classify(self, inputs: Array | Examples | pd.DataFrame | str | Path, *, prepared: bool = False) -> list[str]:
        """Return the class of the largest output of each example.

        Arguments and errors are those of `predict`; UsageError too if the task names no classes.
        """
        names = self.metadata.class_names
        if not names:
            raise UsageError(f"task {self.metadata.task!r} names no classes; use the outputs themselves")
        return [names[number] for number in self.predict(inputs, prepared=prepared).argmax(axis=1)]

    def reload_if_newer(self) -> bool:
        """Open the present model if it differs from this one, and return whether it did.

        A model that was opened by its own path stays.
        """
        if self._store is None:
            return False
        store, task = self._store
        if store.current(task) in (None, self.path):
            return False
        newer = self._read_present(store, task, self._threads, self._task)
        if newer is not None:
            self._same_prepare = False
            self.path, self.metadata, self._model = newer.path, newer.metadata, newer._model
        return newer is not None

    @classmethod
    def _read_present(
        cls, store: ModelStore, task: str, threads: int, found: Task | None = None
    ) -> PersonalModel | None:
        for attempt in range(_ATTEMPTS):
            path = store.current(task)
            if path is None:
                return None
            try:
                return cls(path, threads=threads, task=found)
            except StateError:
                if attempt + 1 == _ATTEMPTS or store.current(task) == path:
                    raise
        return None


def examples_of(readings: str | Path | Array | pd.DataFrame, metadata: ModelMetadata) -> Examples:
    """Return the examples of raw readings in the format of the model's task. Arguments and errors: `PersonalModel.examples`."""
    form = metadata.readings
    if form is None:
        raise UsageError(
            f"task {metadata.task!r} does not declare its readings; give it Task(..., readings=...), and wait for the model of "
            "the next round, or give arrays as load_data returns them"
        )
    found = _read_examples(readings, form)
    return found if metadata.prepare is not None else without_missing(found)


def _read_examples(readings: str | Path | Array | pd.DataFrame, form: ReadingsFormat) -> Examples:
    if isinstance(readings, str | Path):
        return read(readings, form, for_prediction=True)
    if isinstance(readings, np.ndarray):
        found = from_arrays(readings, np.zeros(len(readings)), inputs=tuple(form.inputs))
    else:
        there = list(getattr(readings, "columns", ()))
        if form.target in there:
            readings = readings.drop(columns=[form.target])
        time, group = (one if one in there else None for one in (form.time, form.group))
        found = from_frame(readings, form.inputs, None, time=time, group=group)
    return as_examples(found, form, for_prediction=True)


def only_task(store: ModelStore, state_dir: Path) -> str:
    """Return the only task with models; raise UsageError if there is none, or more than one."""
    tasks = store.tasks()
    if not tasks:
        raise UsageError(
            f"{state_dir}: holds no personal model; it comes with the first round whose update the coordinator takes, or is "
            "elsewhere: say where with --state-dir"
        )
    if len(tasks) > 1:
        raise UsageError(f"{state_dir}: holds models of several tasks, {', '.join(tasks)}; say which with --task")
    return tasks[0]


def _with_inputs(metadata: ModelMetadata, file: Path) -> ModelMetadata:
    """Return the metadata with the statistics of the training inputs, where this user may read them."""
    try:
        return replace(metadata, inputs=inputs_from_json(file.read_bytes(), str(file)))
    except (FileNotFoundError, PermissionError):
        return metadata


def _read(path: Path, threads: int) -> tuple[ModelMetadata, OnnxModel]:
    file = path / METADATA_FILE
    try:
        metadata = _with_inputs(from_json(file.read_bytes(), str(file)), path / INPUTS_FILE)
        file = path / MODEL_FILE
        model = file.read_bytes()
    except OSError as error:
        raise StateError(f"{file}: {error.strerror}; may this user read it, and is it an exported model?") from error
    if hashlib.sha256(model).hexdigest() != metadata.sha256:
        raise StateError(f"{file}: is damaged (its SHA-256 does not fit); `fedpatch-agent rollback` goes back")
    return metadata, OnnxModel(model, str(file), threads=threads)
