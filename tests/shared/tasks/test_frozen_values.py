"""Frozen values: not tensors of the schema, but part of its digest; from build_model or a file with a checksum."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.task_checks.trial_training import require_repeatable, require_trainable
from fedpatch.shared.tasks.downloads import DataFile
from fedpatch.shared.tasks.frozen_values import frozen_in, new_model
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import initial_tensors, load_tensors, resolve_private, schema_of, to_tensors
from fedpatch.shared.tensors.arrays import values_digest
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.tensors.schema import NOTHING_FROZEN, Schema, TensorSpec
from tests.support.examples import examples
from tests.support.frozen_tasks import BASE, FILE, FROM_FILE, TASK, FrozenBase, base_file, build_model
from tests.system.oracle_task import device_data

PARAMETERS = sorted(name for name, _ in FrozenBase().named_parameters())
STATISTICS = ("bn.running_mean", "bn.running_var")


class Trunk(nn.Module):
    """A trunk with batch norm, which may stay in evaluation mode, before a head."""

    def __init__(self, *, stays: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).requires_grad_(requires_grad=False)
        self.head = nn.Linear(4, 2)
        self._stays = stays

    def train(self, mode: bool = True) -> Trunk:
        super().train(mode)
        if self._stays:
            self.trunk.eval()
        return self


def with_frozen(names: set[str] | frozenset[str], changed: str = "") -> Task:
    """Return a task that freezes these parameters; the parameter `changed` has another value than usual."""

    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = FrozenBase()
        for name, value in model.named_parameters():
            value.requires_grad_(name not in names)
            if name == changed:
                value.data.view(-1)[0] += 1
        return model

    return replace(TASK, build_model=build, frozen=tuple(names) or False)


def write_base(root: Path) -> Path:
    path = FILE.path(root)
    path.parent.mkdir(parents=True)
    path.write_bytes(base_file())
    return path


@given(
    frozen=st.sets(st.sampled_from(PARAMETERS), max_size=len(PARAMETERS) - 1),
    policy=st.sampled_from(("none", "stats", "affine", "all", "norms", "head", "names:*lora_B*")),
    changed=st.sampled_from(PARAMETERS),
)
@examples(40)
def test_published_private_and_frozen_values_are_the_whole_state_and_the_digest_covers_the_frozen(
    frozen, policy, changed
):
    task = with_frozen(frozen)
    module = new_model(task)
    schema = schema_of(module)
    try:
        chosen = resolve_private(policy, module, task.head)
        private, public = chosen.private_names(schema), set(chosen.public(schema).names)
    except UsageError:  # the policy keeps only frozen values
        private, public = frozenset(), set(schema.names)
    parts = [set(private), public, set(schema.frozen.names)]
    assert set.union(*parts) == set(module.state_dict())
    assert sum(map(len, parts)) == len(module.state_dict())
    assert set(schema.frozen.names) == frozen
    assert to_tensors(module).keys() == initial_tensors(task, 0).keys() == set(schema.names)
    other = schema_of(new_model(with_frozen(frozen, changed)))
    assert (other.digest == schema.digest) == (changed not in frozen)


def test_a_schema_without_frozen_values_has_the_digest_of_its_tensors():
    schema = schema_of(build_model())
    assert schema.frozen == NOTHING_FROZEN
    assert schema.digest == Schema.from_lists(schema.to_lists()).digest
    assert schema_of(new_model(TASK)).subset(["head.bias"]).frozen == NOTHING_FROZEN


def test_frozen_values_keep_their_bits_when_tensors_are_loaded():
    module = new_model(TASK)
    before = {name: module.state_dict()[name].clone() for name in BASE}
    load_tensors(module, {name: value + 1 for name, value in to_tensors(module).items()})
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in BASE)
    frozen = {name: before[name].numpy() for name in BASE}
    specs = tuple(TensorSpec(name, value.shape, "float32", "buffer") for name, value in frozen.items())
    assert frozen_in(module).digest == values_digest(frozen, Schema(specs))
    assert frozen_in(module).nbytes == sum(value.nbytes for value in before.values())


def test_values_of_a_file_equal_those_of_build_model(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path))
    write_base(tmp_path)
    assert schema_of(new_model(FROM_FILE)).digest == schema_of(new_model(TASK)).digest
    require_trainable(FROM_FILE, device_data("n=20,test=5,seed=1"), "device pi")


def test_a_file_of_other_values_is_refused_with_its_path_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path))
    path = write_base(tmp_path)

    def refused(words: str, **change: Any) -> None:
        with pytest.raises(DataError, match=words) as caught:
            new_model(replace(FROM_FILE, frozen_file=replace(FILE, **change)))
        assert str(path.parent) in str(caught.value)

    refused("expected 00; replace it", sha256="00")
    refused("absent.npz could not be downloaded .* bring it here by other means", name="absent.npz")

    def written(name: str, content: bytes) -> dict[str, Any]:
        (path.parent / name).write_bytes(content)
        return {"name": name, "sha256": hashlib.sha256(content).hexdigest()}

    refused("is no file of numpy.savez", **written("noise.npz", b"noise"))
    part: dict[str, Any] = {"base.bias": np.zeros(10, np.float32)}
    np.savez(path.parent / "part.npz", **part)
    refused("lacks the frozen values 'base.weight'", **written("part.npz", (path.parent / "part.npz").read_bytes()))
    wide: dict[str, Any] = {"base.bias": np.zeros(10), "base.weight": np.zeros((10, 12))}
    np.savez(path.parent / "wide.npz", **wide)
    refused(
        "has 'base.bias' as float64 .*the model as float32",
        **written("wide.npz", (path.parent / "wide.npz").read_bytes()),
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frozen": ("base.*", "tail.*")}, "'tail.\\*' matches no tensor of the model"),
        ({"frozen": ("base.*", "head.*")}, "'head.bias', 'head.weight', which is trained; call requires_grad_"),
        ({"build_model": FrozenBase}, "each parameter is trained; call requires_grad_"),
        (
            {"build_model": lambda: FrozenBase().requires_grad_(requires_grad=False)},
            "leaves nothing to train; let at least one",
        ),
        (
            {"build_model": lambda: Trunk(stays=False), "frozen": ("trunk.*",)},
            "updates in training; keep the layer in evaluation mode",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_the_model_is_an_error_with_its_remedy(changes, words):
    with pytest.raises(UsageError, match=f"frozen of task 'frozen'.*{words}"):
        new_model(replace(TASK, **changes))


def test_a_layer_that_stays_in_evaluation_mode_may_have_frozen_statistics():
    task = replace(TASK, build_model=lambda: Trunk(stays=True), frozen=("trunk.*",))
    assert len(frozen_in(new_model(task)).names) == 7


def test_a_tied_tensor_must_be_frozen_under_all_of_its_names():
    def build() -> nn.Module:
        model = build_model()
        model.again = model.get_submodule("base")
        return model

    with pytest.raises(UsageError, match=r"lacks 'again.bias', 'again.weight', another name"):
        new_model(replace(TASK, build_model=build, frozen=("base.*",)))
    assert len(frozen_in(new_model(replace(TASK, build_model=build))).names) == 4


def test_frozen_values_that_follow_from_chance_are_an_error():
    def build() -> nn.Module:
        model = FrozenBase()
        model.base.requires_grad_(requires_grad=False)
        return model

    with pytest.raises(UsageError, match=r"frozen values 'base.bias', 'base.weight' are others: draw them from"):
        require_repeatable(replace(TASK, build_model=build))


def test_frozen_values_that_a_training_step_changes_are_an_error():
    class Counting(FrozenBase):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("seen").add_(len(x))
            return super().forward(x)

    task = replace(TASK, build_model=Counting, frozen=("seen",))
    with pytest.raises(UsageError, match=r"a training step changes frozen values .* leave out of frozen"):
        require_trainable(task, device_data("n=20,test=5,seed=1"), "device pi")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frozen": "base.*"}, "write a tuple of patterns, or True"),
        ({"frozen": False, "frozen_file": DataFile("a", "b", "00")}, "has a frozen_file and no frozen values"),
    ],
)
def test_a_task_refuses_terms_that_do_not_go_together(changes, words):
    with pytest.raises(UsageError, match=words):
        replace(TASK, **changes)


def test_a_policy_of_frozen_names_alone_is_an_error_and_of_others_too_is_none():
    schema = schema_of(new_model(TASK))
    with pytest.raises(UsageError, match=r"'base.\*' matches only frozen values \('base.bias', 'base.weight'\)"):
        parse_policy("names:base.*").private_names(schema)
    assert parse_policy("names:*.bias").private_names(schema) == {"bn.bias", "head.bias", "norm.bias"}


def test_a_missing_file_names_the_folder_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path / "empty"))
    task = replace(FROM_FILE, frozen_file=DataFile("frozen", "base.npz", "00"))
    with pytest.raises(DataError, match=str(Path("empty", "frozen", "base.npz"))):
        new_model(task)
