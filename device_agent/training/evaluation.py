"""User accuracy: the metric of a device's own model on the device's own test data (paper, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedpatch.device_agent.training.failure_cause import attributed
from fedpatch.shared.errors import DataError, UpdateRefused
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import evaluating
from fedpatch.shared.wire.reason_codes import FailCause

EVALUATION_BATCH = 512


class Cancelled(Exception):
    """The evaluation was cancelled."""


def evaluation_batches(count: int, batch_size: int = EVALUATION_BATCH) -> list[slice]:
    """Return the batches of `count` examples, without a last one of a single example, which some models cannot take.

    The last batch may have fewer examples than `batch_size`, or one more.
    """
    starts = list(range(0, count, batch_size))
    if len(starts) > 1 and batch_size > 1 and count - starts[-1] == 1:
        del starts[-1]
    return [slice(*ends) for ends in pairwise([*starts, count])]


def user_accuracy(
    model: nn.Module,
    task: Task,
    x: Tensor,
    y: Tensor,
    batch_size: int = EVALUATION_BATCH,
    cancelled: Callable[[], bool] = lambda: False,
) -> float:
    """Measure the task's metric of a model.

    Inputs pass through the model in batches, so that memory does not grow with the test set; the metric gets all outputs at
    once. Normalisation uses running statistics. Afterwards every module is in its former mode.

    Args:
        task: The task with the metric.
        x: Test inputs, examples first.
        y: Test targets, one per example.
        cancelled: Called before each batch; True cancels the measurement.

    Raises:
        Cancelled: `cancelled` returned True.
        DataError: The metric breaks its declaration: an accuracy is a fraction from 0 to 1.
        UpdateRefused: "not_finite": the metric has no value, and the model's outputs are not finite.
    """
    with evaluating(model), torch.inference_mode():
        outputs = []
        for batch in evaluation_batches(len(x), batch_size):
            if cancelled():
                raise Cancelled
            with attributed(FailCause.MODEL):
                outputs.append(model(x[batch].clone()))  # a model may change its inputs in place
        return _value_of(task, torch.cat(outputs), y)


def _value_of(task: Task, outputs: Tensor, y: Tensor) -> float:
    """Return the metric of outputs. Its failure is the model's if a training that diverged made the outputs."""
    try:
        with attributed(FailCause.METRIC):
            accuracy = float(task.metric(outputs, y))
            if not task.metric_terms.allows(accuracy):
                raise DataError(
                    f"task {task.name!r}: its metric gave {accuracy} on {len(y)} test examples; `metric` must return "
                    f"{task.metric_terms.range_words}"
                )
    except Exception as error:
        if outputs.isfinite().all():
            raise
        with attributed(FailCause.MODEL):
            raise UpdateRefused(
                "not_finite",
                f"the metric has no value, since outputs of the model are not finite on {len(y)} test examples; a smaller "
                "learning rate may help",
            ) from error
    return accuracy
