"""A device's vector and the sum of vectors: values exact to one code, figures exact, nothing is kept for the next round."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedpatch.shared.masking.device_vector as device_vector
from fedpatch.shared.errors import UpdateRefused, WireError
from fedpatch.shared.masking.device_vector import make_vector, step_between, weight_class
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.group_sum import GroupSum, mean_step, read_report, read_sum, sum_of_groups
from fedpatch.shared.masking.masked_blob import MaskedUpdate, mask_blob, read_masked_blob, write_masked_blob
from fedpatch.shared.masking.ranges import MAX_CHANGE, first_clip, first_ranges, next_clip, next_ranges
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.masking.vector_layout import LIMB_BITS, VectorLayout, from_limbs, to_limbs
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.messages import UpdateReport
from tests.support.examples import examples
from tests.support.masked_group import terms_of

SCHEMA = Schema(
    (
        TensorSpec("fc.weight", (5, 7), "float32", "weight"),
        TensorSpec("bn.running_mean", (5,), "float32", "stats"),
        TensorSpec("bn.num_batches_tracked", (), "int64", "stats"),
    )
)
REPORT = UpdateReport("ab" * 32, 100, 30, 1.25, 0.5, 0.75, 1.0, 2.0)


def layout_of(size=10, *, ranges=(0.5, 0.25), **changes):
    terms = terms_of(size, grid=write_grid(ranges), clip=1e6, weight_cap=100)
    return VectorLayout(SCHEMA, replace(terms, **changes))


def step_of(seed, scale=0.1):
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.normal(0, scale, spec.shape).astype("f4") for spec in SCHEMA.specs if spec.dtype == "float32"
    }


def vector_of(layout, step, *, report=REPORT, metric=None, seed=0):
    return make_vector(layout, step=step, report=report, metric=metric or MetricTerms(), seed=seed)


def summed(layout, vectors):
    total = np.zeros(layout.size, layout.dtype)
    for vector in vectors:
        total += vector
    return read_sum(layout, total, len(vectors))


@examples(40)
@given(st.integers(1, 10), st.sampled_from([8, 16]), st.integers(0, 2**32))
def test_sum_of_vectors_is_the_sum_of_codes_and_figures(devices, bits, seed):
    """By an oracle: the mean is the weighted mean of the devices' steps, up to one code of each."""
    layout = layout_of(bits=bits, ranges=(2.0, 1.0))
    examples = [10 * (index + 1) for index in range(devices)]
    steps = [step_of(seed + index) for index in range(devices)]
    vectors = [
        vector_of(layout, step, report=replace(REPORT, num_examples=count), seed=index)
        for index, (step, count) in enumerate(zip(steps, examples, strict=True))
    ]
    total = summed(layout, vectors)
    mean = mean_step(layout, total)["fc.weight"]
    expected = sum(count * step["fc.weight"].astype(float) for count, step in zip(examples, steps, strict=True))
    one_code = 2.0 / layout.top * layout.terms.weight_cap * devices / sum(examples)
    np.testing.assert_allclose(mean, expected / sum(examples), atol=one_code)
    report = read_report(layout, total)
    assert (report.devices, report.weight, report.num_examples) == (devices, sum(examples), sum(examples))


def test_vector_does_not_depend_on_the_size_of_its_blocks(monkeypatch):
    layout, step = layout_of(clip=0.5), step_of(3)
    whole = vector_of(layout, step)
    monkeypatch.setattr(device_vector, "_BLOCK", 3)
    assert vector_of(layout, step).tolist() == whole.tolist()


def test_rounding_is_unbiased():
    layout = layout_of(ranges=(1.0, 1.0))
    step = {"fc.weight": np.full((5, 7), 0.03, "f4"), "bn.running_mean": np.zeros(5, "f4")}
    means = [
        mean_step(layout, summed(layout, [vector_of(layout, step, seed=seed)]))["fc.weight"] for seed in range(400)
    ]
    assert np.mean(means) == pytest.approx(0.03, abs=0.002)
    assert np.unique(means) == pytest.approx([0.0, 1 / layout.top])


def test_value_beyond_the_range_is_cut_off():
    layout = layout_of(ranges=(0.5, 0.5))
    step = {"fc.weight": np.full((5, 7), -0.75, "f4"), "bn.running_mean": np.full(5, 0.75, "f4")}
    total = summed(layout, [vector_of(layout, step)])
    mean = mean_step(layout, total)
    assert np.allclose(mean["fc.weight"], -0.5)
    assert np.allclose(mean["bn.running_mean"], 0.5)
    assert read_report(layout, total).clipped_values == 40


def test_step_beyond_the_clip_is_shortened_to_it():
    """The norm includes only the trained tensors; the grid bounds the statistics."""
    layout = layout_of(clip=0.5, ranges=(10.0, 10.0), bits=16)
    step = {"fc.weight": np.full((5, 7), 1.0, "f4"), "bn.running_mean": np.full(5, 3.0, "f4")}
    total = summed(layout, [vector_of(layout, step)])
    mean = mean_step(layout, total)
    assert math.sqrt(np.square(mean["fc.weight"]).sum()) == pytest.approx(0.5, abs=0.02)
    assert np.allclose(mean["bn.running_mean"], 3.0, atol=0.01)
    assert read_report(layout, total).norm == pytest.approx(4.0)


def test_step_is_the_update_minus_the_model_and_zero_where_an_untrained_value_is_not_finite():
    mask = np.asarray([-np.inf, 2.0, np.inf, -1.0, np.nan, 0.0], "f4")
    specs = (TensorSpec("w", (2,), "float32", "weight"), TensorSpec("mask", mask.shape, "float32", "stats"))
    model = {"w": np.asarray([1.0, np.inf], "f4"), "mask": mask}
    update = {"w": np.asarray([3.5, 0.0], "f4"), "mask": mask + np.float32(1)}
    # Freed at once, and allocated again by numpy: an element that is left out is NaN.
    np.full_like(mask, np.nan)
    step = step_between(specs, model, update)
    assert step["w"].tolist() == [2.5, -np.inf]
    assert step["mask"].tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("count", "nearest"), [(0, 1), (1, 1), (3, 4), (7, 4), (9, 16), (31, 16), (33, 64), (600, 1024)]
)
def test_class_of_a_number_of_examples_is_the_nearest_power_of_four_unless_its_owner_hides_it(count, nearest):
    assert weight_class(count) == nearest
    assert weight_class(count, hidden_as=50) == 50


def test_weight_is_the_number_of_examples_up_to_the_cap():
    layout = layout_of(weight_cap=50)
    total = summed(layout, [vector_of(layout, step_of(1), report=replace(REPORT, num_examples=70))])
    report = read_report(layout, total)
    assert (report.weight, report.num_examples) == (50, 70)


def test_mean_step_of_one_device_above_the_weight_cap_is_its_step():
    layout, report = layout_of(bits=16, weight_cap=50, ranges=(1.0, 1.0)), replace(REPORT, num_examples=70)
    mean = mean_step(layout, summed(layout, [vector_of(layout, step_of(1), report=report)]))
    np.testing.assert_allclose(mean["fc.weight"], step_of(1)["fc.weight"], atol=1 / layout.top)


@pytest.mark.parametrize(("beyond", "clipped"), [(False, 0), (True, 35)])
def test_value_at_its_range_is_not_clipped_and_the_next_one_is(beyond, clipped):
    layout = layout_of(ranges=(12.0, 12.0))
    assert layout.top == 12
    value = np.nextafter(np.float32(12), np.float32(13)) if beyond else np.float32(12)
    step = {"fc.weight": np.full((5, 7), value), "bn.running_mean": np.zeros(5, "f4")}
    assert read_report(layout, summed(layout, [vector_of(layout, step)])).clipped_values == clipped


def test_mean_and_spread_of_each_tensor_are_its_own():
    """This also holds for a scalar and for an empty tensor."""
    shapes = {"a": (), "b": (0,), "c": (4,), "d": (2, 3)}
    schema = Schema(tuple(TensorSpec(name, shape, "float32", "weight") for name, shape in shapes.items()))
    terms = terms_of(2, bits=16, grid=write_grid((1.0, 1.0, 2.0, 0.5)), clip=1e6, weight_cap=100)
    layout, values = VectorLayout(schema, terms), {"a": 0.25, "b": 0.0, "c": -0.5, "d": 0.125}
    step = {name: np.full(shape, values[name], "f4") for name, shape in shapes.items()}
    total = summed(layout, [vector_of(layout, step)])
    for name, found in mean_step(layout, total).items():
        assert found.shape == shapes[name]
        np.testing.assert_allclose(found, values[name], atol=2 / layout.top)
    assert read_report(layout, total).spreads == pytest.approx((0.25, 0.0, 0.25, 0.25), rel=1e-4)


def test_step_of_zeros_is_a_vector_of_zeros():
    layout = layout_of()
    total = summed(layout, [vector_of(layout, {name: 0 * values for name, values in step_of(1).items()})])
    assert not total.codes.any()
    assert read_report(layout, total).norm == 0


def test_device_with_one_example_has_a_mean():
    layout = layout_of(bits=16, weight_cap=1, ranges=(1.0, 1.0))
    total = summed(layout, [vector_of(layout, step_of(1), report=replace(REPORT, num_examples=1))])
    np.testing.assert_allclose(mean_step(layout, total)["fc.weight"], step_of(1)["fc.weight"], atol=1 / layout.top)


@given(st.integers(0, 2**40 - 1), st.sampled_from([40, 52]))
def test_limbs_are_read_back(value, bits):
    limbs = to_limbs(value, bits)
    assert len(limbs) == bits // LIMB_BITS
    assert max(limbs) <= 3
    assert from_limbs(limbs) == value


@pytest.mark.parametrize("value", [-1, -(10**9)])
def test_limbs_of_a_negative_figure_are_zero(value):
    assert to_limbs(value, 8) == [0, 0, 0, 0]


def test_limbs_of_64_devices_do_not_overflow():
    """The greatest figures of the greatest group, in eight bits."""
    layout = layout_of(64)
    report = replace(
        REPORT, num_examples=2**53, train_loss=1e12, user_accuracy_before=1.0, user_accuracy_independent=0.5
    )
    vectors = [vector_of(layout, step_of(1), report=report)] * 64
    found = read_report(layout, summed(layout, vectors))
    assert found.num_examples == 64 * (2**40 - 1)
    assert found.histogram == (*[0] * 15, 64)
    assert (found.gaining, found.losing) == (64, 0)


def test_report_is_the_mean_of_what_was_measured():
    layout = layout_of()
    reports = [
        replace(REPORT, user_accuracy_before=0.25, user_accuracy_independent=0.5, train_loss=-2.0),
        replace(REPORT, user_accuracy_before=0.75, user_accuracy_after=None, train_loss=5.5),
        replace(REPORT, user_accuracy_before=None),
    ]
    found = read_report(layout, summed(layout, [vector_of(layout, step_of(1), report=one) for one in reports]))
    assert found.means["train_loss"] == pytest.approx(4.75 / 3, abs=1e-6)
    assert found.means["user_accuracy_before"] == pytest.approx(0.5, abs=1e-6)
    assert found.means["user_accuracy_independent"] == pytest.approx(0.5, abs=1e-6)
    assert found.means["gain"] == pytest.approx(-0.25, abs=1e-6)
    assert found.means["gain_after"] == pytest.approx(0.25, abs=1e-6)
    assert (found.measured["user_accuracy_before"], found.measured["user_accuracy_after"]) == (2, 2)
    assert (found.gaining, found.losing, sum(found.histogram)) == (0, 1, 2)


def test_mean_that_nobody_measured_is_none():
    layout = layout_of()
    found = read_report(layout, summed(layout, [vector_of(layout, step_of(1))]))
    assert found.means["gain"] is None


def test_device_that_neither_gains_nor_loses_is_counted_as_neither():
    layout, report = layout_of(), replace(REPORT, user_accuracy_before=0.5, user_accuracy_independent=0.5)
    found = read_report(layout, summed(layout, [vector_of(layout, step_of(1), report=report)]))
    assert found.means["gain"] == pytest.approx(0, abs=1e-6)
    assert (found.gaining, found.losing) == (0, 0)


@pytest.mark.parametrize(
    ("value", "place"), [(-9.0, 0), (-1.0, 0), (-0.76, 0), (-0.75, 1), (1.0, 8), (2.99, 15), (3.0, 15), (9.0, 15)]
)
def test_bins_divide_the_range_of_the_metric_into_sixteen(value, place):
    assert device_vector.bin_of(value, MetricTerms("score", "max", -1.0, 3.0)) == place


def test_gain_of_an_error_has_the_other_sign():
    layout, error = layout_of(), MetricTerms("error", "min", 0.0, 1.0)
    report = replace(REPORT, user_accuracy_before=0.2, user_accuracy_independent=0.3)
    found = read_report(layout, summed(layout, [vector_of(layout, step_of(1), report=report, metric=error)]))
    assert found.means["gain"] == pytest.approx(0.1, abs=1e-6)
    assert found.gaining == 1


@pytest.mark.parametrize(
    ("goal", "accuracies", "expected"),
    [
        ("max", [0.0, 0.0, *[0.5] * 6, 1.0, 1.0], 1 / 32),
        ("min", [0.0, 0.0, *[0.5] * 6, 1.0, 1.0], 1 - 1 / 32),
        ("max", [0.0, 0.25, *[1.0] * 18], 0.25 + 1 / 32),
    ],
)
def test_worst_tenth_is_read_from_the_histogram(goal, accuracies, expected):
    layout = layout_of(max(10, len(accuracies)))
    vectors = [vector_of(layout, step_of(1), report=replace(REPORT, user_accuracy_before=one)) for one in accuracies]
    found = read_report(layout, summed(layout, vectors))
    assert found.worst_tenth(MetricTerms(goal=goal)) == pytest.approx(expected)


def test_metric_without_limits_has_no_histogram():
    layout, metric = layout_of(), MetricTerms("loss", "min", -1e12, 1e12)
    found = read_report(layout, summed(layout, [vector_of(layout, step_of(1), metric=metric)]))
    assert found.worst_tenth(metric) is None


def test_sum_of_groups_does_not_depend_on_how_devices_are_grouped():
    layout = layout_of()
    vectors = [vector_of(layout, step_of(index), seed=index) for index in range(6)]
    two = sum_of_groups([summed(layout, vectors[:2]), summed(layout, vectors[2:])])
    three = sum_of_groups([summed(layout, vectors[4:]), summed(layout, vectors[:3]), summed(layout, vectors[3:4])])
    one = summed(layout, vectors)
    for other in (two, three):
        assert (other.devices, other.figures) == (one.devices, one.figures)
        assert other.codes.tolist() == one.codes.tolist()


def test_sum_without_weight_is_refused():
    layout = layout_of()
    total = GroupSum(1, np.zeros(layout.num_values, np.int64), (0,) * len(layout.figures))
    with pytest.raises(UpdateRefused, match="has the weight 0"):
        mean_step(layout, total)


def test_grid_of_another_number_of_tensors_is_a_wire_error():
    with pytest.raises(WireError, match="3 ranges for 2 floating-point tensors"):
        layout_of(ranges=(1.0, 1.0, 1.0))


@pytest.mark.parametrize(("bits", "element_bytes"), [(8, 1), (16, 2)])
def test_vector_has_the_bytes_of_its_elements(bits, element_bytes):
    layout = layout_of(bits=bits, ranges=(2.0, 1.0))
    assert vector_of(layout, step_of(3)).nbytes == layout.nbytes == element_bytes * layout.size


@pytest.mark.parametrize("bits", [8, 16])
def test_masked_blob_is_read_back(bits):
    layout = layout_of(bits=bits, ranges=(2.0, 1.0))
    elements = vector_of(layout, step_of(3))
    blob = write_masked_blob(MaskedUpdate(bytes(32), "ab" * 32, elements))
    masked = mask_blob(blob, b"\xc7" * 32, [Mask(b"\x01" * 32, 1)], bits)
    read = read_masked_blob(masked, layout)
    assert (read.context, read.base) == (b"\xc7" * 32, "ab" * 32)
    back = read_masked_blob(mask_blob(masked, bytes(32), [Mask(b"\x01" * 32, -1)], bits), layout)
    assert back.elements.tolist() == elements.tolist() != read.elements.tolist()


@pytest.mark.parametrize(
    "change", [lambda blob: blob[:-1], lambda blob: blob + b"\x00", lambda blob: b"x" + blob[1:], lambda _: b""]
)
def test_blob_of_another_form_is_refused_as_damaged(change):
    layout = layout_of()
    blob = write_masked_blob(MaskedUpdate(bytes(32), "ab" * 32, vector_of(layout, step_of(3))))
    with pytest.raises(UpdateRefused, match="no masked update of this round") as refused:
        read_masked_blob(change(blob), layout)
    assert refused.value.reason == "damaged"


def test_ranges_follow_the_spread_of_the_values():
    """After some rounds a range is four times the root mean square, whatever its first value was."""
    ranges: tuple[float, ...] = (100.0, 1e-5)
    for number in range(12):
        layout = layout_of(ranges=ranges, bits=16, seed=number.to_bytes(16))
        steps = [step_of(index, scale=0.01) for index in range(10)]
        ranges = next_ranges(ranges, read_report(layout, summed(layout, [vector_of(layout, one) for one in steps])))
    assert ranges == pytest.approx((0.04, 0.04), rel=0.3)


def test_clip_follows_the_mean_norm():
    clip = 1e4
    for _ in range(12):
        layout = layout_of(clip=clip, ranges=(1.0, 1.0))
        vectors = [vector_of(layout, step_of(index, scale=0.1)) for index in range(10)]
        clip = next_clip(clip, read_report(layout, summed(layout, vectors)))
    assert clip == pytest.approx(2 * 0.1 * math.sqrt(35), rel=0.3)


def test_first_terms_come_from_the_model():
    """This includes a tensor of zeros."""
    model = {"fc.weight": np.full((5, 7), 0.4, "f4"), "bn.running_mean": np.zeros(5, "f4")}
    ranges = first_ranges(SCHEMA, model)
    assert ranges == pytest.approx((1.0, 0.4))
    assert first_clip(SCHEMA, ranges) == pytest.approx(0.4 * math.sqrt(35), rel=1e-5)
    assert MAX_CHANGE > 1
