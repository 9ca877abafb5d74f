"""The personal model of this device, for applications in Python; it needs NumPy and onnxruntime, and no torch.

    from device_agent.personal import PersonalModel

    model = PersonalModel.open("/var/lib/fedpatch-agent", "digits")
    model.predict(images)             # outputs, one row per image
    model.classify(images)            # ["7", "3", ...]
    model.metadata.user_accuracy      # on the device's test data
    model.reload_if_newer()           # once in a while: True after a round has given another model

docs/personal-model.md says more, also for programs in other languages.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from device_agent.model_store import DIRECTORY, ModelStore
from shared.errors import StateError, UsageError
from shared.model_metadata import METADATA_FILE, MODEL_FILE, ModelMetadata, from_json
from shared.onnx_model import OnnxModel
from shared.tensors import Array

# The present model may be replaced, and what was it removed, between a look at the link and the reading.
_ATTEMPTS = 5


class PersonalModel:
    """A model ready to use. `path` is the directory of its files, `metadata` says where it comes from."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        """Read the model in the directory `path`. StateError where it is damaged or absent."""
        self._threads = threads
        self._store: tuple[ModelStore, str] | None = None
        self.path = path
        self.metadata, self._model = _read(path, threads)

    @classmethod
    def open(cls, state_dir: str | Path, task: str = "", *, threads: int = 1) -> PersonalModel:
        """The present model of a task, below an agent's state directory; without a name, of the only task there is.

        Raises UsageError where there is none, and where there are several to choose from.
        """
        store = ModelStore(Path(state_dir).expanduser() / DIRECTORY)
        name = task or only_task(store, Path(state_dir))
        model = cls._read_present(store, name, threads)
        if model is None:
            raise UsageError(
                f"{Path(state_dir) / DIRECTORY / name}: there is no personal model yet; it comes with the first round whose "
                "update the coordinator takes (see keep_models)"
            )
        model._store = (store, name)
        return model

    def predict(self, inputs: Array) -> Array:
        """The model's outputs for `inputs`, examples first in both. DataError for inputs of another shape or kind."""
        return self._model.run(inputs)

    def classify(self, inputs: Array) -> list[str]:
        """The class of the largest output of each example. UsageError where the task names no classes."""
        names = self.metadata.class_names
        if not names:
            raise UsageError(f"task {self.metadata.task!r} names no classes; use the outputs themselves")
        return [names[number] for number in self.predict(inputs).argmax(axis=1)]

    def reload_if_newer(self) -> bool:
        """Take the present model, where it is another than this one; whether it was. One that was opened by path stays."""
        if self._store is None:
            return False
        store, task = self._store
        if store.current(task) in (None, self.path):
            return False
        newer = self._read_present(store, task, self._threads)
        if newer is not None:
            self.path, self.metadata, self._model = newer.path, newer.metadata, newer._model
        return newer is not None

    @classmethod
    def _read_present(cls, store: ModelStore, task: str, threads: int) -> PersonalModel | None:
        for attempt in range(_ATTEMPTS):
            path = store.current(task)
            if path is None:
                return None
            try:
                return cls(path, threads=threads)
            except StateError:
                if attempt + 1 == _ATTEMPTS or store.current(task) == path:
                    raise
        return None


def only_task(store: ModelStore, state_dir: Path) -> str:
    """The task of which there are models; UsageError where there is none, or more than one."""
    tasks = store.tasks()
    if not tasks:
        raise UsageError(
            f"{state_dir}: holds no personal model; it comes with the first round whose update the coordinator takes, or is "
            "elsewhere: say where with --state-dir"
        )
    if len(tasks) > 1:
        raise UsageError(f"{state_dir}: holds models of several tasks, {', '.join(tasks)}; say which with --task")
    return tasks[0]


def _read(path: Path, threads: int) -> tuple[ModelMetadata, OnnxModel]:
    file = path / METADATA_FILE
    try:
        metadata = from_json(file.read_bytes(), str(file))
        file = path / MODEL_FILE
        model = file.read_bytes()
    except OSError as error:
        raise StateError(f"{file}: {error.strerror}; may this user read it, and is it an exported model?") from error
    if hashlib.sha256(model).hexdigest() != metadata.sha256:
        raise StateError(f"{file}: is damaged (its SHA-256 does not fit); `fedpatch-agent rollback` goes back")
    return metadata, OnnxModel(model, str(file), threads=threads)
