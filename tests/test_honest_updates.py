"""No honest device ever commits an offence: with any units of its data, any learning rate and any dtype of the model.

A device trains with its real code, and the coordinator checks the bytes with its real code. A device whose training leaves the
range of its dtype gives up by itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements, decode_and_validate_update
from fedpatch.coordinator.cohort.offences import OFFENCES
from fedpatch.coordinator.find_strategy import STRATEGIES
from fedpatch.device_agent.state.patch_store import PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.errors import DataError, UpdateRefused
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tensors.arrays import MOMENTS, Array
from fedpatch.shared.wire.messages import ENCODINGS, TrainPlan
from fedpatch.shared.wire.plan_terms import make_terms
from tests.device_agent.device_rounds import Scene
from tests.support.examples import examples

FEATURES = 3


class Scaled(nn.Module):
    """A model with a trained value without dimensions."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, 1, dtype=dtype)
        self.temperature = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.fc(x) * self.temperature
        return outputs


def _model(dtype: torch.dtype, buffer: Tensor | None = None, *, norm: bool = False) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        between = nn.BatchNorm1d(4) if norm else nn.ReLU()  # with statistics and a counter
        layers = OrderedDict[str, nn.Module](fc1=nn.Linear(FEATURES, 4), between=between, fc2=nn.Linear(4, 1))
        module = nn.Sequential(layers).to(dtype)
        if buffer is not None:
            module.register_buffer("mask", buffer.clone())
        return module

    return build


def _task(dtype: torch.dtype = torch.float32, buffer: Tensor | None = None) -> Task:
    return Task(
        "units",
        "a regression in the units of its sensors",
        _model(dtype, buffer),
        lambda _spec, _root: _data(1.0, 1.0),
        lambda outputs, targets: torch.mean((outputs[:, 0] - targets) ** 2),
        lambda outputs, targets: float(torch.tanh(torch.mean(torch.abs(outputs[:, 0] - targets).double()))),
        batch_size=4,
        learning_rates={"fedavg": 0.01},
        metric_name="error",
        metric_goal="min",
        metric_range=(0.0, 1.0),
        validation_share=0.0,
    )


def _data(inputs: float, targets: float, count: int = 9, kind: str = "float32", constant: bool = False) -> DeviceData:
    rng = np.random.default_rng(1)
    most = float(np.finfo(kind).max)
    x = np.clip((1 + rng.random((count + 4, FEATURES))) * inputs, -most, most).astype(kind)
    y = np.clip((1 + rng.random(count + 4)) * targets, -most, most).astype(kind)
    if constant:
        x[:], y[:] = x[0], y[0]
    return DeviceData(x[:count], y[:count], x[count:], y[count:])


def play(folder: Path, task: Task, data: DeviceData, plan: TrainPlan, encoding: str, rounds: int = 2) -> list[str]:
    """Let a device train some rounds, each from its own update; return the outcome of each: "" or the device's reason."""
    device = LocalUpdate(LocalTrainer(task, data), PatchStore(folder / "patches"), "ann", private="none")
    scene = Scene(folder, task, plan, "none")
    tensors: dict[str, Array] = scene.initial()
    outcomes = []
    for number in range(1, rounds + 1):
        command = scene.command(tensors, round=number, encoding=encoding)
        try:
            trained = device.run(command, lambda done, total: None, lambda: False)
        except UpdateRefused as error:
            outcomes.append(error.reason)
            continue
        except DataError:
            outcomes.append("no metric")  # of a model whose outputs are not finite: the device fails, without an update
            continue
        assert trained is not None
        manifest, _ = trained
        terms = UpdateRequirements(scene.public, frozenset(), command.base, task.metric_terms, tensors, plan)
        blob = (folder / "update").read_bytes()
        try:
            tensors = decode_and_validate_update(blob, terms, encoding=encoding, raw_bytes=manifest.raw_bytes)[1]
        except UpdateRefused as error:
            pytest.fail(f"an offence of an honest device: {error.reason}: {error}")
        outcomes.append("")
    return outcomes


def _plan(strategy: str, learning_rate: float) -> TrainPlan:
    return STRATEGIES.own[strategy]().plan(learning_rate, 4, 2, 0, 0)


@pytest.mark.parametrize("encoding", ["delta-int8", "fp32+zstd"])
def test_regression_on_pressure_in_pa_and_light_in_lux_trains_with_the_default_strategy(tmp_path, encoding):
    """Its second moments are beyond 1e16."""
    outcomes = play(tmp_path, _task(), _data(1e4, 1e5), _plan("fedavg-adam", 0.01), encoding, rounds=3)
    assert outcomes == ["", "", ""]


@given(
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    strategy=st.sampled_from(sorted(STRATEGIES.own)),
    encoding=st.sampled_from(ENCODINGS),
    inputs=st.integers(-30, 30),
    targets=st.integers(-30, 30),
    rate=st.sampled_from([1e-8, 1e-3, 0.1, 10.0, 1e3]),
    count=st.sampled_from([1, 2, 9]),
    constant=st.booleans(),
    norm=st.booleans(),
)
@example("float16", "fedavg-adam", "fp32+zstd", -2, 0, 1e-3, 9, False, False)
@example("float16", "fedavg-adam", "delta-int8", -2, -2, 1e-3, 9, True, False)
@example("float32", "fedavg-adam", "delta-int8", 9, 9, 1e-3, 9, False, False)
@example("float64", "fedadagrad", "fp32+zstd", 0, 23, 1e-8, 1, True, True)
@examples(80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_honest_device_commits_no_offence_with_any_data(
    tmp_path_factory, dtype, strategy, encoding, inputs, targets, rate, count, constant, norm
):
    data = _data(10.0**inputs, 10.0**targets, max(count, 2) if norm else count, dtype, constant)
    folder = tmp_path_factory.mktemp("device")
    task = replace(_task(), build_model=_model(getattr(torch, dtype), norm=norm))
    outcomes = play(folder, task, data, _plan(strategy, rate), encoding)
    assert set(outcomes) <= {"", "not_finite", "no metric"}


def test_device_gives_up_itself_where_the_coordinator_would_count_an_offence(tmp_path):
    """Its global model has first moments beyond the second ones, which no training corrects in a round."""
    task, plan = _task(), _plan("fedavg-adam", 1e-3)
    scene = Scene(tmp_path, task, plan, "none")
    wild = {
        name: np.full_like(value, 1e6) if name.endswith(":exp_avg") else value
        for name, value in scene.initial().items()
    }
    device = LocalUpdate(LocalTrainer(task, _data(1.0, 1.0)), PatchStore(tmp_path / "patches"), "ann", private="none")
    with pytest.raises(UpdateRefused, match="the update is not sent"):
        device.run(scene.command(wild), lambda done, total: None, lambda: False)
    assert not (tmp_path / "update").exists()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES.own))
def test_value_without_dimensions_is_trained_sent_and_averaged(tmp_path, strategy, encoding):
    task = replace(_task(), build_model=lambda: Scaled(torch.float32))
    assert play(tmp_path, task, _data(1.0, 1.0), _plan(strategy, 1e-3), encoding) == ["", ""]


@pytest.mark.parametrize(
    "terms",
    [
        {"prox": 0.1},
        {"prox": 0.0, "personal": "ditto:0.5"},
        {"prox": 0.0, "personal": "pfedme:5"},
        {"prox": 0.0, "phases": "all:1,public:1", "finish": "all:1"},
    ],
    ids=str,
)
def test_value_without_dimensions_fits_every_plan(tmp_path, terms):
    task = replace(_task(), build_model=lambda: Scaled(torch.float32))
    plan = replace(_plan("fedavg", 1e-3), **make_terms(**terms))
    assert play(tmp_path, task, _data(1.0, 1.0), plan, "delta-int8") == ["", ""]


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_buffer_that_is_not_finite_and_never_changes_is_no_fault(tmp_path, encoding, value):
    """Such as the mask of causal attention."""
    mask = torch.triu(torch.full((3, 3), float(value)), diagonal=1)
    outcomes = play(tmp_path, _task(buffer=mask), _data(1.0, 1.0), _plan("fedavg-adam", 1e-3), encoding)
    assert outcomes == ["", ""]


def test_metric_out_of_the_range_here_is_refused_without_an_offence(tmp_path):
    """The device may have another version of the task, of the same model."""
    task, plan, data = _task(), _plan("fedavg", 1e-3), _data(1.0, 1.0)
    scene = Scene(tmp_path, task, plan, "none")
    device = LocalUpdate(LocalTrainer(task, data), PatchStore(tmp_path / "patches"), "ann", private="none")
    command = scene.command()
    trained = device.run(command, lambda done, total: None, lambda: False)
    assert trained is not None
    narrow = MetricTerms("error", "min", 0.0, 1e-9)
    terms = UpdateRequirements(scene.public, frozenset(), command.base, narrow, scene.initial(), plan)
    with pytest.raises(UpdateRefused, match="its error of") as refused:
        decode_and_validate_update(
            (tmp_path / "update").read_bytes(), terms, encoding="fp32+zstd", raw_bytes=trained[0].raw_bytes
        )
    assert ("refused", refused.value.reason) not in OFFENCES


def test_moments_of_float16_that_are_rounded_to_zero_are_accepted():
    """A gradient of 0.005 leaves a second moment of zero: each addition is below half of the least number."""
    from fedpatch.shared.tensors.moment_bounds import check_moments

    first, second = np.float16(0), np.float16(0)
    for _ in range(50):
        first = np.float16(0.9 * float(first) + 0.1 * 0.005)
        second = np.float16(0.999 * float(second) + 0.001 * 0.005**2)
    assert second == 0 and first > 0.004
    schema = Scene(Path(), _task(torch.float16), replace(_plan("fedavg-adam", 1e-3), moments=MOMENTS), "none").public
    sent = {
        spec.name: np.full(spec.shape, first if spec.name.endswith(":exp_avg") else 0, spec.dtype)
        for spec in schema.specs
    }
    check_moments(sent, schema, _plan("fedavg-adam", 1e-3))


def test_first_moment_beyond_the_bound_is_accepted_only_as_far_as_the_rounding_of_the_second_one_explains_it():
    """With b2 = 0.999 each addition below half of the spacing is lost: in float16 up to a third of the second moment."""
    from fedpatch.shared.tensors.moment_bounds import check_moments

    plan = _plan("fedavg-adam", 1e-3)
    bound = 0.1 / math.sqrt(0.001 * (1 - 0.81 / 0.999))
    refused: dict[torch.dtype, list[float]] = {}
    for dtype in (torch.float16, torch.float32):
        schema = Scene(Path(), _task(dtype), replace(plan, moments=MOMENTS), "none").public
        for times in (1.05, 1.2, 1.5):
            values = {"exp_avg": times * bound, "exp_avg_sq": 1.0}
            sent = {
                spec.name: np.full(spec.shape, values.get(spec.name.rpartition(":")[2], 0.0), spec.dtype)
                for spec in schema.specs
            }
            with suppress(UpdateRefused):
                check_moments(sent, schema, plan)
                continue
            refused.setdefault(dtype, []).append(times)
    assert refused == {torch.float16: [1.5], torch.float32: [1.2, 1.5]}
