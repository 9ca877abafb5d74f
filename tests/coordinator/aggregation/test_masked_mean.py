"""The sums of masked groups that count, which are the sums that honest devices can have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.masked_mean import (
    MaskedMean,
    check_masked_update,
    check_site_sum,
    is_possible,
    masked_mean,
    private_masked_mean,
    round_layout,
)
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.masking.device_vector import make_vector
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.group_sum import GroupSum, read_sum
from fedpatch.shared.masking.masked_blob import MaskedUpdate, write_masked_blob
from fedpatch.shared.masking.private_vector import PrivateLayout, make_private_vector
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.support.masked_group import terms_of

SCHEMA = Schema((TensorSpec("w", (4,), "float32", "weight"),))
LAYOUT = VectorLayout(SCHEMA, terms_of(3, group_min=3, bits=16, clip=10.0, weight_cap=10, grid=write_grid((1.0,))))
BASE = {"w": np.zeros(4, np.float32)}
ACCURACY = MetricTerms()
METRICS = {
    "accuracy": ACCURACY,
    "error": MetricTerms("mae", "min", 0.1, 7.3),
    "beyond what travels": MetricTerms("count", "max", 1e10, 1e11),
    "any number": MetricTerms("score", "max", -MAX_MEASURE, MAX_MEASURE),
}
REPORT = UpdateReport("ab" * 32, 10, 1, 0.5, 0.5, 0.75, 0.0, 0.0, 0.25)


def vector(report: UpdateReport, metric: MetricTerms = ACCURACY) -> Array:
    step = {"w": np.full(4, 0.5)}
    return make_vector(LAYOUT, step=step, report=report, metric=metric, seed=1)


def summed(*reports: UpdateReport, metric: MetricTerms = ACCURACY) -> GroupSum:
    total = np.zeros(LAYOUT.size, LAYOUT.dtype)
    for report in reports:
        total += vector(report, metric)
    return read_sum(LAYOUT, total, len(reports))


def mean_of(*groups: list[UpdateReport]) -> MaskedMean:
    reports = {f"pi-{at}{one}": report for at, group in enumerate(groups) for one, report in enumerate(group)}
    opened = [OpenGroup(tuple(f"pi-{at}{one}" for one in range(len(group))), ()) for at, group in enumerate(groups)]
    updates = {device: MaskedUpdate(bytes(32), "00" * 32, vector(report)) for device, report in reports.items()}
    return masked_mean(opened, updates.__getitem__, layout=LAYOUT, schema=SCHEMA, base=BASE, metric=ACCURACY)


@pytest.mark.parametrize(
    "lie",
    [{"user_accuracy_before": 1e6}, {"user_accuracy_after": -3.0}, {"user_accuracy_independent": 9.0}],
    ids=lambda lie: next(iter(lie)),
)
def test_group_whose_user_accuracies_are_impossible_is_left_out(lie):
    """It would end a run with `target_ua`."""
    found = mean_of([REPORT] * 3, [REPORT, REPORT, replace(REPORT, **lie)])
    assert found.left_out == ("pi-10", "pi-11", "pi-12")
    assert found.report is not None
    assert (found.report.devices, found.report.means["user_accuracy_before"]) == (3, 0.5)


def test_mean_of_no_possible_group_is_the_global_model_without_figures():
    found = mean_of([REPORT, REPORT, replace(REPORT, user_accuracy_before=1e6)])
    assert (found.report, found.left_out) == (None, ("pi-00", "pi-01", "pi-02"))
    assert found.mean["w"].tolist() == [0.0] * 4


def update_of(elements: Array) -> MaskedUpdate:
    return MaskedUpdate(bytes(32), "00" * 32, elements)


def test_mean_of_a_group_has_the_steps_of_all_its_devices():
    updates = {
        device: update_of(make_vector(LAYOUT, step={"w": np.full(4, way)}, report=REPORT, metric=ACCURACY, seed=1))
        for device, way in (("a", 0.75), ("b", 0.0), ("c", 0.0))
    }
    groups = [OpenGroup(("a", "b", "c"), ())]
    found = masked_mean(groups, updates.__getitem__, layout=LAYOUT, schema=SCHEMA, base=BASE)
    assert found.mean["w"] == pytest.approx(np.full(4, 0.25), abs=1e-3)


def test_noised_mean_has_the_steps_of_all_devices_of_all_groups_divided_by_the_denominator():
    layout = PrivateLayout(SCHEMA, 1.0, 1000)
    ways = {"a": 0.4, "b": 0.2, "c": -0.1, "d": 0.1}
    updates = {
        device: update_of(make_private_vector(layout, {"w": np.full(4, way)}, 1)) for device, way in ways.items()
    }
    groups = [OpenGroup(("a", "b"), ()), OpenGroup(("c", "d"), ())]
    base = {"w": np.ones(4, np.float32)}
    found = private_masked_mean(groups, updates.__getitem__, layout=layout, schema=SCHEMA, base=base, denominator=6)
    assert found["w"] == pytest.approx(np.full(4, 1.1), abs=1e-3)


def test_layout_of_a_round_has_figures_unless_its_devices_add_noise():
    assert round_layout(SCHEMA, LAYOUT.terms, None) == LAYOUT
    policy = PrivacyPolicy(1.5, 0.5, steps=300)
    assert round_layout(SCHEMA, LAYOUT.terms, policy) == PrivateLayout(SCHEMA, 0.5, 300)


def test_masked_update_of_another_group_or_another_model_is_refused():
    sent = MaskedUpdate(bytes(32), "cd" * 32, vector(REPORT))
    blob = write_masked_blob(sent)
    found = check_masked_update(blob, LAYOUT, context=sent.context, base=sent.base)
    assert found.elements.tolist() == sent.elements.tolist()
    for context, base, reason, words in (
        (bytes([1] * 32), sent.base, RefuseReason.NOT_INVITED, "another group"),
        (sent.context, "ab" * 32, RefuseReason.WRONG_BASE, r"model (cd){6}, this round's is (ab){6}$"),
    ):
        with pytest.raises(UpdateRefused, match=words) as refused:
            check_masked_update(blob, LAYOUT, context=context, base=base)
        assert refused.value.reason == reason


def test_sum_of_a_measure_that_no_device_has_measured_is_impossible():
    names = [name for name, _ in LAYOUT.figures]
    total = summed(*[replace(REPORT, user_accuracy_before=None)] * 3)
    assert is_possible(LAYOUT, total, ACCURACY)
    figures = list(total.figures)
    figures[names.index("user_accuracy_before")] = 1
    assert not is_possible(LAYOUT, replace(total, figures=tuple(figures)), ACCURACY)


def test_figure_that_one_device_has_measured_is_its_own_without_its_name():
    """The device chose to measure; a mean of one hides nothing."""
    alone = replace(REPORT, user_accuracy_independent=0.375)
    found = mean_of([replace(REPORT, user_accuracy_independent=None)] * 2 + [alone]).report
    assert found is not None
    assert found.means["user_accuracy_independent"] == pytest.approx(0.375, abs=1e-5)
    assert "pi-0" not in repr(found)


def test_weight_below_one_for_each_device_is_impossible():
    """A bad device that takes weight from the others would lengthen the mean step of its group."""
    total = summed(*[replace(REPORT, num_examples=1)] * 3)
    assert total.figures[0] == 3 and is_possible(LAYOUT, total, ACCURACY)
    assert not is_possible(LAYOUT, replace(total, figures=(2, *total.figures[1:])), ACCURACY)


def test_sum_of_a_site_with_an_impossible_user_accuracy_is_refused():
    total = summed(REPORT, REPORT, replace(REPORT, user_accuracy_before=9.0))
    with pytest.raises(UpdateRefused, match="no 3 devices can have its accuracy"):
        check_site_sum(total, LAYOUT, registered=3, most=3, metric=ACCURACY)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@given(st.data())
def test_any_honest_devices_have_a_possible_sum(metric, data):
    measured = st.none() | st.floats(metric.least, metric.most)
    report = st.builds(
        replace,
        st.just(REPORT),
        train_loss=st.floats(-MAX_MEASURE, MAX_MEASURE),
        user_accuracy_before=measured,
        user_accuracy_after=measured,
        user_accuracy_independent=measured,
    )
    reports = data.draw(st.lists(report, min_size=3, max_size=3))
    assert is_possible(LAYOUT, summed(*reports, metric=metric), metric)


@pytest.mark.parametrize("bits", [8, 16])
def test_variance_far_below_the_grid_follows_in_some_rounds_and_never_becomes_zero(bits):
    """Each device would divide by epsilon."""
    schema = Schema((TensorSpec("bn.running_var", (2,), "float32", "stats"), SCHEMA.specs[0]))
    terms = terms_of(3, group_min=3, bits=bits, clip=10.0, weight_cap=10, grid=write_grid((1.0, 1.0)))
    layout = VectorLayout(schema, terms)
    model: dict[str, Array] = {"bn.running_var": np.ones(2, np.float32), **BASE}
    names, lowest = ("a", "b", "c"), []
    for number in range(6):
        step = {"w": np.zeros(4), "bn.running_var": 1e-4 - model["bn.running_var"].astype(np.float64)}
        updates = {
            name: MaskedUpdate(
                bytes(32),
                "00" * 32,
                make_vector(layout, step=step, report=REPORT, metric=ACCURACY, seed=7 * number + at),
            )
            for at, name in enumerate(names)
        }
        group = [OpenGroup(names, ())]
        found = masked_mean(group, updates.__getitem__, layout=layout, schema=schema, base=model, metric=ACCURACY)
        model = dict(found.mean)
        lowest.append(float(model["bn.running_var"].min()))
    assert min(lowest) > 0
    assert lowest[0] == pytest.approx(0.125, rel=0.1)
    assert lowest[-1] < 0.01
