"""Models as ONNX: onnxruntime computes the same outputs as torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpatch.shared.errors import DataError, ExportRefused, StateError
from fedpatch.shared.onnx.export import export_onnx, torch_outputs
from fedpatch.shared.onnx.runtime import BATCH, TOLERANCE, OnnxModel, require_parity
from fedpatch.shared.tasks.bundled import cifar10, digits, mnist
from fedpatch.shared.tasks.model_metadata import OPSET
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import initial_tensors, load_tensors, schema_of, to_tensors
from fedpatch.shared.tensors.patches import merge, parse_policy

TASKS = {task.name: task for task in (digits.TASK, mnist.TASK, cifar10.TASK)}
POLICIES = ("none", "stats", "affine", "all")


def samples(task: Task, count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random((count, *task.input_shape), dtype=np.float32)


def used(task: Task, seed: int) -> dict[str, np.ndarray]:
    """Values of a trained model: statistics, gammas and betas differ from those of a new model."""
    rng = np.random.default_rng(seed)
    schema = schema_of(task.build_model())
    values = initial_tensors(task, seed)
    for spec in schema.specs:
        if spec.role in ("stats", "affine") and spec.dtype == "float32":
            values[spec.name] = rng.uniform(0.25, 2.0, spec.shape).astype(np.float32)
    return values


class Deciding(nn.Module):
    """Computes a sum or a mean, by a value that a trace does not see."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=1) if x.mean() > 0 else x.mean(dim=1)


class Dropping(nn.Module):
    """Drops half of its outputs in training."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.drop(self.fc(x))
        return dropped


class Squeezing(nn.Module):
    """Leaves out each axis of length 1, also the axis of the examples."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=1, keepdim=True).squeeze()


class Counting(nn.Module):
    """Has the number of examples of the trace as a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(int(x.shape[0]), 3)


class Special(nn.Module):
    """Uses an operator that ONNX does not have."""

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.eigvals(x @ x.transpose(-1, -2))
        return values.real


@pytest.mark.parametrize("private", POLICIES)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_exported_model_gives_the_outputs_of_torch_under_every_policy(task, private):
    """A model with one round's public values and another's private ones, for one example and for many."""
    module = task.build_model()
    schema, policy = schema_of(module), parse_policy(private)
    public, private_values = used(task, 1), used(task, 2)
    private_names = policy.private_names(schema)
    load_tensors(
        module,
        merge(
            {name: value for name, value in public.items() if name not in private_names},
            {name: private_values[name] for name in private_names},
        ),
    )
    model = OnnxModel(export_onnx(module, samples(task, 1)).model, "model")
    assert (model.input_shape, model.input_dtype) == (task.input_shape, task.input_dtype)
    for count in (1, 2, 33):
        inputs = samples(task, count, seed=count)
        expected = torch_outputs(module, inputs)
        assert expected.shape == (count, len(task.class_names))
        assert require_parity(model, inputs, expected) <= TOLERANCE


def test_a_private_value_makes_another_model():
    """Parity is no accident: with another patch the outputs differ by far more than the tolerance."""
    module = digits.TASK.build_model()
    load_tensors(module, used(digits.TASK, 1))
    model = OnnxModel(export_onnx(module, samples(digits.TASK, 1)).model, "model")
    patch = {name: value for name, value in used(digits.TASK, 2).items() if name.startswith("bn1.")}
    load_tensors(module, merge({k: v for k, v in to_tensors(module).items() if k not in patch}, patch))
    inputs = samples(digits.TASK, 5)
    with pytest.raises(ExportRefused, match="differ from torch's"):
        require_parity(model, inputs, torch_outputs(module, inputs))


def test_many_batches_give_what_one_does():
    module = digits.TASK.build_model()
    model = OnnxModel(export_onnx(module, samples(digits.TASK, 1)).model, "model")
    inputs = samples(digits.TASK, 2 * BATCH + 3)
    require_parity(model, inputs, torch_outputs(module, inputs))


def test_the_module_is_as_it_was():
    module = Dropping()
    module.drop.eval()
    modes = [part.training for part in module.modules()]
    before, state = to_tensors(module), torch.random.get_rng_state()
    inputs = np.random.default_rng(1).random((7, 4), dtype=np.float32)
    model = OnnxModel(export_onnx(module, inputs).model, "model")
    require_parity(model, inputs, torch_outputs(module, inputs))
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(np.array_equal(value, before[name]) for name, value in to_tensors(module).items())
    module(torch.from_numpy(inputs)).sum().backward()
    assert module.fc.weight.grad is not None


def test_the_opset_and_the_names_are_those_that_are_documented():
    import onnx

    exported = export_onnx(digits.TASK.build_model(), samples(digits.TASK, 1))
    graph = onnx.load_from_string(exported.model)
    assert [(one.domain, one.version) for one in graph.opset_import] == [("", OPSET)]
    assert ([one.name for one in graph.graph.input], [one.name for one in graph.graph.output]) == (
        ["input"],
        ["output"],
    )
    assert (exported.onnx, exported.torch) == (onnx.__version__, torch.__version__)


def test_a_model_that_decides_by_a_value_is_refused():
    """A trace contains only one of the two branches; inputs for the other branch show this."""
    module = Deciding()
    model = OnnxModel(export_onnx(module, np.ones((1, 3), np.float32)).model, "model")
    inputs = -np.ones((4, 3), np.float32)
    with pytest.raises(ExportRefused, match=r"differ from torch's .* does the model decide by a value"):
        require_parity(model, inputs, torch_outputs(module, inputs))


@pytest.mark.parametrize("module", [Squeezing(), Counting()], ids=["squeeze", "constant"])
def test_a_model_that_does_not_take_one_example_alone_is_refused(module):
    """The outputs of several examples equal torch's, and an application that asks for one got an error."""
    inputs = np.random.default_rng(1).random((2, 3), dtype=np.float32)
    model = OnnxModel(export_onnx(module, inputs[:1]).model, "model")
    with pytest.raises(ExportRefused, match=r"does not take one example alone \(.*; does it use squeeze\(\)"):
        require_parity(model, inputs, torch_outputs(module, inputs))


def test_a_model_without_an_onnx_is_refused_in_a_sentence():
    with pytest.raises(ExportRefused, match=r"cannot be written as ONNX: .*; build it of operators"):
        export_onnx(Special(), np.ones((1, 3, 3), np.float32))


@pytest.mark.parametrize(
    ("expected", "why"),
    [(np.zeros((2, 4)), "have shape"), (np.full((2, 10), np.nan), "not all finite")],
    ids=["shape", "nan"],
)
def test_outputs_that_cannot_be_compared_are_refused(expected, why):
    model = OnnxModel(export_onnx(digits.TASK.build_model(), samples(digits.TASK, 1)).model, "model")
    with pytest.raises(ExportRefused, match=why):
        require_parity(model, samples(digits.TASK, 2), expected)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (np.zeros((2, 63), np.float32), r"shape \(2, 63\), the model takes \(n, 64\)"),
        (np.zeros(64, np.float32), r"the model takes \(n, 64\)"),
        (np.zeros((0, 64), np.float32), "n at least 1"),
        (np.zeros((2, 64), np.complex64), "complex64, the model takes float32"),
    ],
    ids=["width", "one", "none", "complex"],
)
def test_inputs_of_another_shape_are_refused(inputs, why):
    model = OnnxModel(export_onnx(digits.TASK.build_model(), samples(digits.TASK, 1)).model, "model")
    with pytest.raises(DataError, match=why):
        model.run(inputs)


@pytest.mark.parametrize("convert", [np.float64, np.float32, np.int64, np.uint8], ids=str)
def test_inputs_of_another_number_type_are_converted(convert: Callable[..., Any]):
    model = OnnxModel(export_onnx(digits.TASK.build_model(), samples(digits.TASK, 1)).model, "model")
    assert model.run(convert(np.ones((2, 64)))).shape == (2, 10)


@pytest.mark.parametrize("damage", [b"", b"no model at all", None], ids=["empty", "text", "cut"])
def test_bytes_that_are_no_model_are_refused(damage):
    whole = export_onnx(digits.TASK.build_model(), samples(digits.TASK, 1)).model
    with pytest.raises(StateError, match=r"here/model\.onnx: cannot be run"):
        OnnxModel(whole[: len(whole) // 2] if damage is None else damage, "here/model.onnx")


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_metric_of_arrays_is_that_of_tensors_to_the_last_bit(task):
    assert task.metric_takes_arrays
    rng = np.random.default_rng(3)
    for count in (1, 3, 7, 30, 999):
        outputs, targets = rng.normal(size=(count, 10)).astype(np.float32), rng.integers(0, 10, count)
        assert task.metric(outputs, targets) == task.metric(torch.from_numpy(outputs), torch.from_numpy(targets))


class ScalesInPlace(nn.Module):
    """A model that scales its inputs in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scaled inputs."""
        return x.mul_(0.5)


def test_outputs_of_a_model_that_changes_its_inputs_leave_the_array_as_it_is():
    inputs = np.ones((3, 4), np.float32)
    assert torch_outputs(ScalesInPlace(), inputs).tolist() == [[0.5] * 4] * 3
    assert inputs.tolist() == [[1.0] * 4] * 3
