"""The simulator's own layers compute the same as torch, and are not used for models that they cannot compute."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.simulator.kernels.flat_model import WorkingModel
from fedpatch.simulator.kernels.layers import NARROW, Calls
from fedpatch.simulator.kernels.model_layers import layers_of
from tests.simulator.studies import CLASSES, UNEVEN, assert_like_deployed, study_of
from tests.support.examples import examples

COUNTS = (9, 5)
BATCH = 4
RATE = 0.1
SIZES: st.SearchStrategy[tuple[int, int]] = st.sampled_from([(1, 1), (2, 2), (1, 2), (2, 1), (3, 3)])


@st.composite
def convolutions(draw: st.DrawFn, channels: int) -> nn.Module:
    """Any convolution of `channels` channels that fits an image of 5 x 5."""
    groups = draw(st.sampled_from([1, channels]))
    return nn.Conv2d(
        channels,
        groups * draw(st.integers(1, 2)),
        draw(SIZES),
        stride=draw(SIZES),
        padding=draw(st.integers(1, 2)),
        dilation=draw(st.integers(1, 2)),
        groups=groups,
        bias=draw(st.booleans()),
    )


@st.composite
def poolings(draw: st.DrawFn) -> nn.Module:
    """Any maximum pooling with a non-empty result for an image of 3 x 3 or more."""
    return nn.MaxPool2d(
        draw(st.sampled_from([(2, 2), (1, 2), (3, 3)])),
        stride=draw(SIZES | st.none()),
        padding=draw(st.sampled_from([(0, 0), (0, 1)])),
        ceil_mode=draw(st.booleans()),
    )


@st.composite
def layers_for(draw: st.DrawFn, shape: tuple[int, ...], before: nn.Module | None) -> nn.Module:
    """A layer that takes examples of `shape`, after `before`."""
    kinds = ["linear", "batch norm", "relu", "tanh", "flatten"]
    if len(shape) == 3 and min(shape[1:]) >= 3:
        kinds += ["convolution", "pooling"]
    match draw(st.sampled_from(kinds)):
        case "linear":
            return nn.Linear(shape[-1], draw(st.integers(1, 5) | st.just(NARROW)), bias=draw(st.booleans()))
        case "batch norm":
            kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
            return kind(shape[0], eps=draw(st.sampled_from([1e-5, 0.1])), momentum=draw(st.sampled_from([0.1, 1.0])))
        case "relu":
            # Right after a tanh or a relu torch refuses to work in place, since these layers need their output.
            may_be_in_place = isinstance(before, nn.Linear | nn.Conv2d | nn.BatchNorm1d | nn.BatchNorm2d)
            return nn.ReLU(inplace=may_be_in_place and draw(st.booleans()))
        case "tanh":
            return nn.Tanh()
        case "flatten":
            return nn.Flatten()
        case "pooling":
            return draw(poolings())
    return draw(convolutions(shape[0]))


def shape_after(layer: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the output of `layer` for an example of `shape`."""
    with torch.no_grad():
        return tuple(deepcopy(layer).eval()(torch.zeros(2, *shape)).shape[1:])


SHAPES = st.sampled_from([(4,), (3, 2), (2, 5, 5), (1, 4, 5)])


@st.composite
def sequences(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A classifier of up to five layers and a last linear one, some of them nested; and the shape of its examples."""
    first = shape = draw(SHAPES)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(0, 5))):
        layers.append(draw(layers_for(shape, layers[-1] if layers else None)))
        shape = shape_after(layers[-1], shape)
    if len(shape) > 1:
        layers.append(nn.Flatten())
    layers.append(nn.Linear(int(np.prod(shape)), CLASSES))
    start, end = sorted(draw(st.tuples(st.integers(0, len(layers)), st.integers(0, len(layers)))))
    return nn.Sequential(*layers[:start], nn.Sequential(*layers[start:end]), *layers[end:]).double(), first


def task_of(model: nn.Module, shape: tuple[int, ...]) -> Task:
    """Two clients with random data for `model`; every call of build_model returns a new copy of it."""

    def load_data(spec: str, _root: Path) -> DeviceData:
        rng = np.random.default_rng(int(spec))
        train, test = (rng.normal(size=(count, *shape)) for count in (COUNTS[int(spec)], 6))
        return DeviceData(train, rng.integers(CLASSES, size=len(train)), test, rng.integers(CLASSES, size=len(test)))

    return replace(UNEVEN, build_model=lambda: deepcopy(model), load_data=load_data)


def assert_trains_as_devices_do(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Two rounds of FedAvg with private batch norm statistics, if there are any, give the deployed system's model."""
    study = study_of(clients=2, data="{index}", participation=1.0, batch_size=BATCH)
    assert_like_deployed(study, task_of(model, shape), rounds=2, tolerance=1e-7)


@given(sequences())
@examples(60)
def test_any_sequence_of_known_layers_trains_as_on_a_device(drawn):
    model, shape = drawn
    assert layers_of(model) is not None
    assert_trains_as_devices_do(model, shape)


@given(st.data(), SHAPES, st.integers(2, 5))
@examples(100)
def test_each_layer_is_its_torch_module(data, shape, examples):
    module = data.draw(layers_for(shape, None)).double()
    model = nn.Sequential(module)
    layers = layers_of(model)
    assert layers is not None
    if module.state_dict():
        ours = WorkingModel(model, layers, frozenset(), grads=True)
        ours.public.copy_(ours.layout.flatten(model.state_dict()))
    layers[0].first = False  # a first layer does not compute the gradient by its input
    x = torch.randn(examples, *shape, dtype=torch.float64)
    outputs, below, grads, grad = _by_autograd(module, x)
    calls: Calls = []
    out = layers[0].forward(x, calls)
    back = layers[0].backward(grad, None, calls)
    for call in calls:
        call()
    torch.testing.assert_close(out, outputs)
    torch.testing.assert_close(back, below)
    for name, value in grads.items():
        found = layers[0].grads[name]
        torch.testing.assert_close(found.t() if isinstance(module, nn.Linear) and name == "weight" else found, value)
    for name, buffer in layers[0].buffers.items():
        torch.testing.assert_close(buffer, module.get_buffer(name))
    torch.testing.assert_close(layers[0].infer(x), module.eval()(x.clone()))


def _by_autograd(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
    leaf = x.clone().requires_grad_()
    outputs = module(leaf + 0)  # in-place operations are not allowed on a leaf
    grad = torch.randn_like(outputs)
    names, parameters = zip(*module.named_parameters(), strict=True) if list(module.parameters()) else ((), ())
    below, *grads = torch.autograd.grad(outputs, [leaf, *parameters], grad)
    return outputs.detach(), below, dict(zip(names, grads, strict=True)), grad


@given(sequences())
@examples(30)
def test_a_step_in_place_is_the_gradient_times_the_learning_rate(drawn):
    model, shape = drawn
    stored, in_place = (
        WorkingModel(deepcopy(model), layers, frozenset(), grads=grads)
        for layers, grads in ((layers_of(deepcopy(model)), True), (layers_of(deepcopy(model)), False))
        if layers is not None
    )
    for one in (stored, in_place):
        one.public.copy_(one.layout.flatten(model.state_dict()))
    x = torch.randn(BATCH, *shape, dtype=torch.float64)
    grad = torch.randn(BATCH, CLASSES, dtype=torch.float64)
    stored.outputs(x), in_place.outputs(x)
    stored.backward(grad, None)
    in_place.backward(grad, RATE)
    torch.testing.assert_close(in_place.public, stored.public - RATE * stored.public_grad)


def shared_activation() -> nn.Module:
    """One activation in two places, as users often write it."""
    relu = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 5), relu, nn.Linear(5, 5), relu, nn.Linear(5, CLASSES)).double()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(shared_activation(), (4,), id="one activation in two places"),
        pytest.param(nn.Sequential(nn.Linear(4, CLASSES)).eval().double(), (4,), id="built in evaluation mode"),
        pytest.param(
            nn.Sequential(nn.Sequential(), nn.Linear(4, CLASSES), nn.Sequential()).double(), (4,), id="empty parts"
        ),
        pytest.param(
            nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9, CLASSES)).double(),
            (3, 2),
            id="linear along the last of three axes",
        ),
        pytest.param(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, CLASSES)).double(), (4,), id="in place first"),
        pytest.param(
            nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Flatten(), nn.ReLU(), nn.Linear(9, CLASSES)).double(),
            (3, 2),
            id="a view of what is still needed",
        ),
    ],
)
def test_models_that_are_easily_mistaken_train_as_on_a_device(model, shape):
    assert_trains_as_devices_do(model, shape)


def _sequence(change: Callable[[nn.Sequential], object]) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, CLASSES))
    change(model)
    return model


def _share(model: nn.Sequential) -> None:
    model[4].weight = model[3].weight


def _twice(model: nn.Sequential) -> None:
    model.append(model[3])


def _own_forward(model: nn.Sequential) -> None:
    model[0].forward = lambda x: x * 2


def _around(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


class OwnLinear(nn.Linear):
    """A subclass, which may compute anything."""


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(nn.Linear(4, 3), id="no sequence"),
        pytest.param(nn.Sequential(), id="an empty sequence"),
        pytest.param(nn.Sequential(nn.Sequential()), id="empty inside"),
        pytest.param(_around(nn.Linear(4, 3), nn.Dropout(0.1)), id="dropout"),
        pytest.param(_around(OwnLinear(4, 3)), id="a subclass"),
        pytest.param(_around(nn.Conv2d(1, 2, 3, padding="same")), id="padding by name"),
        pytest.param(_around(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")), id="circular padding"),
        pytest.param(_around(nn.BatchNorm1d(4, affine=False)), id="batch norm without weights"),
        pytest.param(_around(nn.BatchNorm1d(4, track_running_stats=False)), id="batch norm without statistics"),
        pytest.param(_around(nn.BatchNorm1d(4, momentum=None)), id="batch norm with a cumulative average"),
        pytest.param(_around(nn.MaxPool2d(2, return_indices=True)), id="pooling that returns indices"),
        pytest.param(_around(nn.Flatten(0)), id="flatten that takes the examples too"),
        pytest.param(_around(nn.Flatten(1, 2)), id="flatten of some axes"),
        pytest.param(_sequence(_share), id="shared weights"),
        pytest.param(_sequence(_twice), id="one layer in two places"),
        pytest.param(_sequence(lambda m: m[0].requires_grad_(False)), id="frozen"),
        pytest.param(_sequence(lambda m: m[1].bias.requires_grad_(False)), id="half frozen"),
        pytest.param(_sequence(lambda m: m[0].register_forward_hook(lambda *a: None)), id="a forward hook"),
        pytest.param(_sequence(lambda m: m[0].register_forward_pre_hook(lambda *a: None)), id="a pre-hook"),
        pytest.param(_sequence(lambda m: m[0].register_full_backward_hook(lambda *a: None)), id="a backward hook"),
        pytest.param(_sequence(lambda m: m[0].register_full_backward_pre_hook(lambda *a: None)), id="before backward"),
        pytest.param(_sequence(lambda m: m.register_forward_hook(lambda *a: None)), id="a hook around all"),
        pytest.param(
            _sequence(lambda m: m.get_parameter("0.weight").register_hook(lambda g: g * 2)), id="a gradient hook"
        ),
        pytest.param(
            _sequence(lambda m: m.get_parameter("0.weight").register_post_accumulate_grad_hook(lambda p: None)),
            id="after the gradient",
        ),
        pytest.param(_sequence(lambda m: nn.utils.parametrizations.weight_norm(m[0])), id="weight norm"),
        pytest.param(_sequence(lambda m: m.register_parameter("a", nn.Parameter(torch.ones(2)))), id="own parameter"),
        pytest.param(
            _sequence(lambda m: m[0].register_buffer("seen", torch.zeros((), dtype=torch.int64))), id="buffer"
        ),
        pytest.param(_sequence(lambda m: m.register_buffer("scale", torch.ones(2))), id="a buffer of the whole"),
        pytest.param(_sequence(_own_forward), id="a forward of its own"),
    ],
)
def test_model_other_than_a_plain_sequence_is_run_by_torch(model):
    """The simulator's layers are not used for a model that may compute more than its layers."""
    assert layers_of(model) is None
