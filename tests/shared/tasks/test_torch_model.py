"""From a torch module to named tensors and back; batch norm is found by type, never by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedpatch.shared.errors import SchemaMismatch, UsageError
from fedpatch.shared.tasks.task import DeviceData, Task, find_task
from fedpatch.shared.tasks.torch_model import (
    initial_tensors,
    load_tensors,
    private_names,
    require_whole_ties,
    resolve_private,
    schema_of,
    to_tensors,
)
from fedpatch.shared.tensors.arrays import TensorSpec
from tests.shared.arbitrary_tensors import bits

STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}


class OddNorm(nn.BatchNorm1d):
    """A user's batch norm that keeps a gate and a clock of its own."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.gate = nn.Parameter(torch.ones(size))
        self.register_buffer("clock", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(size), persistent=False)


class Squeezer(nn.Module):
    """A model whose attribute names carry no information."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1 = nn.Linear(2, 3)  # a misleading name
        self.bn10 = nn.BatchNorm1d(3)
        self.whatever = OddNorm(3)
        self.parts = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()))
        self.register_buffer("mean", torch.zeros(2))


def roles(module: nn.Module) -> dict[str, str]:
    return {spec.name: spec.role for spec in schema_of(module).specs}


def fill(module: nn.Module) -> nn.Module:
    """Fill each tensor of the module with another number."""
    for number, tensor in enumerate(module.state_dict().values()):
        tensor.fill_(number + 1)
    return module


# --- roles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_every_batch_norm_of_torch_is_found(norm):
    module = nn.ModuleDict({"squash": norm(3)})
    expected = {"squash.weight": "affine", "squash.bias": "affine"}
    assert roles(module) == expected | {f"squash.{name}": "stats" for name in STATISTICS}


def test_roles_follow_module_types_and_not_names():
    found = roles(Squeezer())
    assert {name for name, role in found.items() if role == "affine"} == {
        "bn10.weight",
        "bn10.bias",
        "whatever.weight",
        "whatever.bias",
        "whatever.gate",
        "parts.1.0.weight",
        "parts.1.0.bias",
    }
    assert {name for name, role in found.items() if role == "stats"} == {
        *(f"{norm}.{name}" for norm in ("bn10", "whatever", "parts.1.0") for name in STATISTICS),
        "whatever.clock",
    }
    assert {name for name, role in found.items() if role == "buffer"} == {"mean"}
    assert {name for name, role in found.items() if role == "weight"} == {
        "bn1.weight",
        "bn1.bias",
        "parts.0.weight",
        "parts.0.bias",
    }


def test_a_batch_norm_by_itself_is_found():
    assert set(roles(nn.BatchNorm1d(2)).values()) == {"affine", "stats"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"affine": False}, {"stats"}), ({"track_running_stats": False}, {"affine"})],
)
def test_a_batch_norm_may_lack_values(options, expected):
    assert set(roles(nn.Sequential(nn.BatchNorm1d(2, **options))).values()) == expected


def test_other_norms_are_weights():
    """The paper's patches are batch norm; a layer norm or group norm is a layer like any other."""
    module = nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True))
    assert set(roles(module).values()) == {"weight"}


def test_a_parametrized_batch_norm_is_still_one():
    """Gamma is affine even if torch moves it into a module inside the batch norm."""
    norm = nn.BatchNorm1d(2)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus())
    assert roles(norm)["parametrizations.weight.original"] == "affine"


def test_a_frozen_parameter_is_not_trained():
    """Parameters that need no gradient get no moments, and a server optimizer never changes them."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).requires_grad_(False)
    found = roles(module)
    assert {name for name, role in found.items() if role == "buffer"} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {name for name, role in found.items() if role == "stats"} == {f"1.{name}" for name in STATISTICS}


def test_a_shared_batch_norm_is_affine_under_each_of_its_names():
    norm = nn.BatchNorm1d(2)
    found = roles(nn.ModuleDict({"first": norm, "second": nn.Sequential(norm)}))
    assert found["first.weight"] == found["second.0.weight"] == "affine"


def test_a_weight_tied_to_gamma_is_affine():
    norm, scale = nn.BatchNorm1d(2), nn.Module()
    scale.register_parameter("weight", norm.weight)
    assert roles(nn.ModuleDict({"a_scale": scale, "norm": norm}))["a_scale.weight"] == "affine"


# --- content of a schema --------------------------------------------------------------------------


def test_shapes_and_dtypes_are_those_of_the_module():
    schema = schema_of(OddNorm(3))
    assert schema.spec("weight") == TensorSpec("weight", (3,), "float32", "affine")
    assert schema.spec("num_batches_tracked") == TensorSpec("num_batches_tracked", (), "int64", "stats")
    assert schema.spec("clock") == TensorSpec("clock", (), "float32", "stats")
    assert "scratch" not in schema


def test_unsupported_tensor_is_a_usage_error():
    with pytest.raises(UsageError, match=r"weight: dtype 'bfloat16' cannot travel; use one of float16"):
        schema_of(nn.Linear(2, 2, dtype=torch.bfloat16))
    with pytest.raises(UsageError, match=r"a:b.*':' must separate"):
        schema_of(nn.ModuleDict({"a:b": nn.Linear(2, 2)}))
    with pytest.raises(UsageError, match="send one batch through the model"):
        schema_of(nn.LazyLinear(2))


def test_extra_state_is_a_usage_error():
    """State that is not a tensor would be lost in the transfer, so it is refused."""

    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            raise NotImplementedError

    with pytest.raises(UsageError, match=r"'_extra_state'.*make it a buffer"):
        schema_of(Counting(2, 2))


# --- values ---------------------------------------------------------------------------------------


def test_values_fit_the_schema_and_come_back():
    one, other = fill(Squeezer()), Squeezer()
    tensors = to_tensors(one)
    schema_of(one).check(tensors)
    load_tensors(other, tensors)
    assert bits(to_tensors(other)) == bits(tensors)
    assert all(torch.equal(other.state_dict()[name], value) for name, value in one.state_dict().items())


def test_taken_values_are_copies():
    """Further training does not change the copies, and changes of the copies do not reach the module."""
    module = nn.Linear(2, 2)
    tensors = to_tensors(module)
    before = bits(tensors)
    fill(module)
    assert bits(tensors) == before


def test_values_of_any_memory_format_are_taken_in_c_order():
    module = nn.Conv2d(3, 4, 3)
    usual = to_tensors(module)["weight"]
    module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
    turned = to_tensors(module)["weight"]
    assert turned.flags.c_contiguous
    assert np.array_equal(usual, turned)


def test_read_only_and_strided_arrays_can_be_loaded():
    module = nn.Linear(2, 2, bias=False)
    weight = np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::-2]
    weight.flags.writeable = False
    load_tensors(module, {"weight": weight})
    assert np.array_equal(to_tensors(module)["weight"], weight)


@pytest.mark.parametrize(
    "change",
    [
        {"weight": np.zeros((3, 2), np.float32)},
        {"weight": np.zeros((2, 2), np.float64)},
        {"weight:exp_avg": np.zeros((2, 2), np.float32)},
    ],
)
def test_values_of_another_schema_leave_the_model_unchanged(change):
    module = nn.Linear(2, 2)
    before = to_tensors(module)
    with pytest.raises(SchemaMismatch):
        load_tensors(module, {"bias": np.ones(2, np.float32), "weight": np.ones((2, 2), np.float32)} | change)
    assert bits(to_tensors(module)) == bits(before)


def test_loading_keeps_the_module_trainable():
    """Values are copied in place: the optimizer's parameters stay the same objects, and gradients still flow."""
    module = nn.Linear(2, 1)
    weight = module.weight
    load_tensors(module, to_tensors(fill(nn.Linear(2, 1))))
    module(torch.ones(1, 2)).sum().backward()
    assert module.weight is weight
    assert weight.grad is not None


# --- the initial model ----------------------------------------------------------------------------


def _no_data(spec: str, root: Path) -> DeviceData:
    raise NotImplementedError


TASK = Task("odd", "an odd model", Squeezer, _no_data, nn.functional.mse_loss, lambda outputs, targets: 0.0)


def test_the_initial_model_follows_from_the_seed():
    first, again, other = (bits(initial_tensors(TASK, seed)) for seed in (7, 7, 8))
    assert first == again != other


def test_making_the_initial_model_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    initial_tensors(TASK, 7)
    assert torch.equal(torch.random.get_rng_state(), before)


# --- ties -----------------------------------------------------------------------------------------


def test_tied_weights_are_private_together_or_not_at_all():
    """A tensor with two names that is private under only one of them would leave the device under the other."""
    tied = nn.ModuleDict({"encode": nn.Linear(2, 2), "decode": nn.Linear(2, 2)})
    tied["decode"].weight = tied["encode"].weight
    both = {"encode.weight", "decode.weight"}
    require_whole_ties(tied, frozenset())
    require_whole_ties(tied, both)
    require_whole_ties(tied, both | {"encode.bias"})
    for name in both:
        with pytest.raises(UsageError, match=f"keeps only '{name}' private"):
            require_whole_ties(tied, {name})


class Block(nn.Module):
    """A block of a transformer, with an RMS norm as the libraries of transformers write it."""

    class LlamaRMSNorm(nn.Module):
        """Recognised only by the end of its class name."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(4), self.LlamaRMSNorm(), nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (
            nn.Sequential(Block(), Block()),
            {f"{i}.{name}" for i in (0, 1) for name in ("norm1.weight", "norm1.bias", "norm2.scale")},
        ),
        (nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), {"1.weight", "1.bias"}),
        (
            nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)),
            {"1.weight", "1.bias", "2.weight", "2.bias"},
        ),
    ],
)
def test_norms_keeps_the_trained_values_of_every_normalisation(model, kept):
    assert private_names(model, "norms") == kept


def test_norms_of_a_model_without_any_is_a_usage_error():
    with pytest.raises(UsageError, match="no normalisation layer"):
        resolve_private("norms", nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, elementwise_affine=False)))


def test_head_is_that_of_the_task_and_a_usage_error_without_one():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert str(resolve_private("head", model, ["1.*"])) == "names:1.*"
    with pytest.raises(UsageError, match="names no head"):
        resolve_private("head", model)


def test_bundled_tasks_name_their_last_layer_as_head():
    for ref in ("mnist", "digits", "cifar10"):
        task = find_task(ref)
        model = task.build_model()
        last = list(model.state_dict())[-1].rpartition(".")[0]
        assert resolve_private("head", model, task.head).private_names(schema_of(model)) == {
            f"{last}.weight",
            f"{last}.bias",
        }
