"""Centred clipping over the sums of masked groups."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.limit_syntax import AggregateRule
from fedpatch.coordinator.aggregation.masked_mean import MaskedMean, masked_mean
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.shared.masking.device_vector import make_vector
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.masked_blob import MaskedUpdate
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from fedpatch.shared.wire.messages import UpdateReport
from tests.support.masked_group import terms_of

SCHEMA = Schema((TensorSpec("m", (2,), "float32", "stats"), TensorSpec("w", (6,), "float32", "weight")))
BASE = {"m": np.ones(2, np.float32), "w": np.zeros(6, np.float32)}
LAYOUT = VectorLayout(SCHEMA, terms_of(2, bits=16, clip=1e3, weight_cap=10, grid=write_grid((4.0, 4.0))))
REPORT = UpdateReport("ab" * 32, 10, 1, 0.5, 0.5, 0.5, 0.0, 0.0)
CENTRED = AggregateRule("centred")


def play(ways: list[Array], rule: AggregateRule = CENTRED, order: list[int] | None = None) -> MaskedMean:
    """Return the mean over groups of two devices; each group has one of the steps."""
    updates, groups = {}, []
    for number, way in enumerate(ways):
        devices = (f"pi-{number}a", f"pi-{number}b")
        groups.append(OpenGroup(devices, ()))
        for device in devices:
            step = {"m": np.full(2, way[0]), "w": way}
            vector = make_vector(LAYOUT, step=step, report=REPORT, metric=MetricTerms(), seed=number)
            updates[device] = MaskedUpdate(bytes(32), "00" * 32, vector)
    chosen = [groups[at] for at in order or range(len(groups))]
    return masked_mean(chosen, updates.__getitem__, layout=LAYOUT, schema=SCHEMA, base=BASE, rule=rule)


ways = st.lists(st.floats(-1, 1), min_size=6, max_size=6).map(np.array)


@given(ways, st.integers(1, 5))
def test_groups_with_equal_steps_give_that_step(way, count):
    found = play([way] * count)
    assert found.mean["w"] == pytest.approx(way, abs=3 * 4.0 / LAYOUT.top)
    assert found.mean["m"] == pytest.approx(np.maximum(1 + way[:1].repeat(2), 0), abs=3 * 4.0 / LAYOUT.top)


@given(st.lists(ways, min_size=1, max_size=4))
def test_order_of_groups_changes_no_bit(some):
    orders = itertools.permutations(range(len(some)))
    assert len({play(some, order=list(order)).mean["w"].tobytes() for order in orders}) == 1


@given(st.lists(ways, min_size=1, max_size=5), st.floats(0.01, 1.0))
def test_result_moves_at_most_three_radii(some, radius):
    found = play(some, AggregateRule("centred", radius=radius))
    assert np.linalg.norm(found.mean["w"]) <= 3 * radius * (1 + 1e-6)


def test_groups_that_count_whole_are_not_named():
    assert play([np.zeros(6)] * 3).pulls == {}


def test_bad_group_moves_the_model_less_than_in_the_mean_and_is_named():
    honest = [np.full(6, 0.1) + 0.01 * number for number in range(4)]
    some = [*honest, np.full(6, -4.0)]
    mean, centred = play(some, AggregateRule()), play(some)
    goal = np.mean(honest, axis=0)
    assert np.linalg.norm(centred.mean["w"] - goal) < np.linalg.norm(mean.mean["w"] - goal) / 5
    assert sorted(centred.pulls, key=lambda device: -centred.pulls[device])[:2] == ["pi-4a", "pi-4b"]
    assert mean.pulls == {}
