"""The user accuracy of a personal model, measured with onnxruntime on the device's own test data."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpatch.shared.errors import DataError, FedpatchError, UsageError
from fedpatch.shared.task_checks.data_checks import load_checked
from fedpatch.shared.tasks.prepare import require_same_prepare

if TYPE_CHECKING:
    from fedpatch.device_agent.models.personal import PersonalModel
    from fedpatch.shared.tasks.task import Task
    from fedpatch.shared.tensors.arrays import Array

log = logging.getLogger("fedpatch.models")


def evaluate_model(model: PersonalModel, task: Task, data: str, data_root: Path) -> tuple[float, int]:
    """Measure the task's metric of a model's outputs on the device's test data.

    Args:
        task: The task with the metric. A metric that takes arrays gets arrays; for any other, torch is imported.
        data: The device's data spec.
        data_root: Folder of data files.

    Returns:
        The user accuracy and the number of test examples.

    Raises:
        UsageError: As the task's `load_data` raises; or the task's `prepare` is not the model's.
        DataError: As the task's `load_data` raises; or its code fails.
    """
    require_same_prepare(task, model.metadata.prepare)
    try:
        own = load_checked(task, data, data_root, "this device", lambda: model.metadata.input_dtype).data
        outputs = model.run(model.prepare(own.test_x, prepared=True))
        measured = float(task.metric(_fit(outputs, task), _fit(own.test_y, task)))
    except (FedpatchError, OSError):
        raise
    except Exception as error:  # any error of the user's code
        log.debug("the task's own code failed", exc_info=error)
        text = f"task {task.name!r} failed with data {data!r}: {type(error).__name__}: {error}; see with --debug"
        raise DataError(text) from error
    return measured, len(own.test_x)


def _fit(values: Array, task: Task) -> Any:
    """Return outputs in the form that the task's metric takes."""
    if task.metric_takes_arrays:
        return values
    try:
        from torch import from_numpy
    except ImportError as error:
        raise UsageError(
            f"the metric of task {task.name!r} takes torch's tensors, and torch is not there ({error}); write it for NumPy "
            "arrays too, say metric_takes_arrays=True, or install torch"
        ) from error
    return from_numpy(values)
