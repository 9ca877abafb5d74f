"""The coarse cause of a failed training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedpatch.coordinator.rounds.decline_hints import hint_for
from fedpatch.device_agent.training.evaluation import user_accuracy
from fedpatch.device_agent.training.failure_cause import attributed, cause_of
from fedpatch.device_agent.training.training_process import fail_reason
from fedpatch.shared.errors import DataError
from fedpatch.shared.wire.messages import Failed
from fedpatch.shared.wire.reason_codes import FailCause, FailReason
from tests.device_agent.toy_tasks import TOY


def raised(model: nn.Module, **changes: Any) -> Exception:
    """Return the error of a measurement with this model and a changed task."""
    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(Exception) as caught:
        user_accuracy(model, replace(TOY, **changes), x, y)
    return caught.value


def refuse(*_: Any) -> Any:
    raise ZeroDivisionError("secret value 17")


def test_error_of_the_metric_is_attributed_to_it():
    assert cause_of(raised(nn.Identity(), metric=refuse)) is FailCause.METRIC


def test_metric_beyond_its_declaration_is_attributed_to_the_metric():
    assert cause_of(raised(nn.Identity(), metric=lambda *_: 7.0)) is FailCause.METRIC


class Diverged(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.inf


@pytest.mark.parametrize("metric", [refuse, lambda outputs, _: float(outputs.mean())])
def test_metric_without_a_value_for_outputs_that_are_not_finite_is_a_diverged_training(metric):
    error = raised(Diverged(), metric=metric)
    assert (fail_reason(error), cause_of(error)) == (FailReason.NOT_FINITE, FailCause.MODEL)
    assert "learning rate" in str(error)


def test_error_of_the_model_is_attributed_to_it():
    assert cause_of(raised(nn.Linear(5, 2))) is FailCause.MODEL


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (DataError("no reading"), FailCause.DATA),
        (MemoryError(), FailCause.MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"), FailCause.MEMORY),
        (ImportError("libtorch_cpu.so: cannot map zero-fill pages"), FailCause.MEMORY),
        (ImportError("libgomp.so.1: cannot allocate memory in static TLS block"), FailCause.PROCESS),
        (OSError("pipe"), FailCause.PROCESS),
    ],
    ids=str,
)
def test_error_outside_the_task_has_a_cause_by_its_kind(error, cause):
    assert cause_of(error) is cause


def test_memory_that_ends_in_the_model_is_a_matter_of_memory():
    with pytest.raises(MemoryError) as caught, attributed(FailCause.MODEL):
        raise MemoryError
    assert cause_of(caught.value) is FailCause.MEMORY


@pytest.mark.parametrize("cause", FailCause)
def test_operator_reads_the_cause_that_the_device_sent(cause):
    assert hint_for(Failed(FailReason.TRAINING, cause=cause)).startswith(f"{cause}: ")
    assert hint_for(Failed(FailReason.TRAINING)) == "see the device's log"
