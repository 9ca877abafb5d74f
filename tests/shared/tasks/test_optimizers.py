"""The steps of SGD and Adam equal those of torch.optim to the last bit, without the modules that its classes load."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedpatch.shared.tasks.optimizers import Adam, ClientOptimizer, Sgd
from tests.support.paths import ROOT


def _model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.Linear(3, 2))


def _ours(model: nn.Module, name: str) -> ClientOptimizer:
    parameters = list(model.parameters())
    if name == "sgd":
        return Sgd(parameters, 0.1)
    zeros = {one: {"step": torch.zeros(()), **_moments(one)} for one in parameters}
    return Adam(parameters, 0.01, betas=(0.8, 0.99), epsilon=1e-6, state=zeros)


def _moments(parameter: nn.Parameter) -> dict[str, torch.Tensor]:
    return {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def _theirs(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.8, 0.99), eps=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_steps_are_those_of_torch(name):
    one, other = _model(), _model()
    ours, theirs = _ours(one, name), _theirs(other, name)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        x = torch.randn(9, 7, generator=generator)
        for model, optimizer in ((one, ours), (other, theirs)):
            optimizer.zero_grad()
            model[:3](x).square().sum().backward()  # type: ignore[index]
            optimizer.step()
    first, second = dict(one.named_parameters()), dict(other.named_parameters())
    for key, value in first.items():
        assert torch.equal(value, second[key]), key
    assert not torch.equal(first["0.weight"], dict(_model().named_parameters())["0.weight"])
    assert torch.equal(first["3.weight"], dict(_model().named_parameters())["3.weight"])
    if isinstance(ours, Adam):
        for mine, its in zip(one[:3].parameters(), other[:3].parameters(), strict=True):  # type: ignore[index]
            for moment, known in ours.state[mine].items():
                assert torch.equal(known, theirs.state[its][moment]), moment


@pytest.mark.medium
def test_a_round_of_training_does_not_load_torchs_compiler(tmp_path):
    """The optimizers of torch.optim load it; it would add 70 MB to the memory that a device needs."""
    program = f"""
import sys
from pathlib import Path
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.state.patch_store import PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from tests.device_agent.device_rounds import ADAM, SGD, Scene
from tests.device_agent.toy_tasks import TOY
folder = Path({str(tmp_path)!r})
data = TOY.load_data("ann:23", folder)
for plan in (SGD, ADAM):
    done = LocalUpdate(LocalTrainer(TOY, data), PatchStore(folder / "p"), "ann").run(
        Scene(folder, TOY, plan, "affine").command(), lambda done, total: None, lambda: False)
    assert done is not None
sys.exit("torch._dynamo" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr or "torch._dynamo was imported"
