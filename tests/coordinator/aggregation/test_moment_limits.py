"""Bounds of moments and counters: their limits, clipping, and updates that no plan can produce."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.limit_syntax import ExamplesCap, NormBound
from fedpatch.coordinator.aggregation.norm_clipping import clip
from fedpatch.coordinator.aggregation.norm_limits import STATS_FACTOR, needs_cohort, norm_limits
from fedpatch.coordinator.aggregation.norm_pace import Pace
from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements, decode_and_validate_update
from fedpatch.coordinator.aggregation.update_norms import norm, norms
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import MOMENTS, Array, Schema, TensorSpec
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.support.specs import report

WEIGHT = TensorSpec("w", (2,), "float32", "weight")
SCHEMA = Schema((WEIGHT,)).with_moments(MOMENTS)
TRACKED = Schema((WEIGHT, TensorSpec("bn.running_mean", (2,), "float32", "stats")))
PLAN = TrainPlan("adam", 0.01, batch_size=10, beta_1=0.9, beta_2=0.99, moments=MOMENTS)
USUAL = {"weights": 2.0, "exp_avg": 3.0, "exp_avg_sq": 5.0, "stats bn.running_mean": 7.0, "count w:step": 0.5}


def update(w: float = 0.0, first: float = 0.0, second: float = 0.0, step: float = 0.0) -> dict[str, Array]:
    """Return an update in which all tensors of a kind have the same value."""
    values = {"w": w, "w:exp_avg": first, "w:exp_avg_sq": second, "w:step": step}
    return {spec.name: np.full(spec.shape, values[spec.name], spec.dtype) for spec in SCHEMA.specs}


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (NormBound("off"), {}),
        (
            NormBound("clip", 4.0),
            {"weights": 4.0, "stats bn.running_mean": 7 * STATS_FACTOR, "count w:step": STATS_FACTOR},
        ),
        (NormBound("reject", 4.0), {"stats bn.running_mean": 7 * STATS_FACTOR, "count w:step": STATS_FACTOR}),
        (
            NormBound("auto", 3.0),
            {"weights": 6.0, "exp_avg": 9.0, "exp_avg_sq": 45.0, "stats bn.running_mean": 21.0, "count w:step": 3.0},
        ),
    ],
    ids=lambda value: value.action if isinstance(value, NormBound) else "",
)
def test_limits_follow_the_reference_and_the_action(bound, expected):
    """The factor of second moments is squared; the reference of a counter is at least one per step."""
    assert norm_limits(USUAL, bound) == expected


@pytest.mark.parametrize(("base_norm", "weights"), [(0.0, 6.0), (1.0, 3.0), (100.0, 6.0)])
def test_first_update_of_a_run_is_bounded_by_the_model_too(base_norm, weights):
    found = norm_limits(USUAL, NormBound("auto", 3.0), alone=True, base_norm=base_norm)
    assert (found["weights"], found["count w:step"]) == (weights, 3.0)


@pytest.mark.parametrize(
    ("schema", "action", "needed"),
    [
        (SCHEMA, "auto", True),
        (SCHEMA, "off", False),
        (TRACKED, "off", False),
        (TRACKED, "clip", True),
        (TRACKED, "reject", True),
        (Schema((WEIGHT,)), "clip", False),
        (SCHEMA, "clip", True),  # this schema has counters
    ],
)
def test_norms_of_the_cohort_are_needed_for_multiples_of_a_reference(schema, action, needed):
    assert needs_cohort(schema, NormBound(action, 1.0)) is needed


@pytest.mark.parametrize(("first", "second"), [(4.0, 1.0), (1.0, 4.0), (2.0, 4.0)])
def test_moments_are_clipped_by_one_factor_and_weights_stay(first, second):
    sent = update(w=1.0, first=first, second=second)
    limits = {"weights": 10.0, "exp_avg": 2**0.5, "exp_avg_sq": 2**0.5}
    clipped = clip(sent, update(), SCHEMA, limits)
    assert clipped is not None
    assert (clipped.tensors["w"] == sent["w"]).all()
    shares = [clipped.tensors[name][0] / sent[name][0] for name in ("w:exp_avg", "w:exp_avg_sq")]
    assert shares == pytest.approx([1 / max(first, second)] * 2, rel=1e-5)
    assert clipped.times == pytest.approx(
        {part: value for part, value in (("exp_avg", first), ("exp_avg_sq", second)) if value > 1}, rel=1e-5
    )


def test_moments_follow_weights_beyond_their_limit():
    sent = update(w=2.0, first=1.0, second=1.0, step=3.0)
    clipped = clip(sent, update(), SCHEMA, {"weights": 2**0.5, "exp_avg": 100.0, "exp_avg_sq": 100.0})
    assert clipped is not None
    halves = [clipped.tensors[name][0] for name in ("w", "w:exp_avg", "w:exp_avg_sq")]
    assert halves == pytest.approx([1.0, 0.5, 0.5], rel=1e-5)


def test_part_that_the_schema_lacks_has_norm_zero():
    assert norm(update(w=3.0), update(), SCHEMA, "stats absent") == 0.0
    assert norms(update(w=3.0, first=1.0), update(), SCHEMA, {"exp_avg"}) == {"exp_avg": pytest.approx(2**0.5)}


def test_pace_of_an_update_decays_moments_and_scales_their_norms():
    """Fifty examples in batches of ten are five steps."""
    pace = Pace.of(PLAN, 50)
    assert pace.steps == 5
    assert (pace.unit("weights"), pace.unit("count w:step")) == (1.0, 5.0)
    assert pace.unit("exp_avg") == pytest.approx(1 - 0.9**5)
    assert pace.unit("exp_avg_sq") == pytest.approx(1 - 0.99**5)
    origin = pace.origin(update(w=1.0, first=1.0, second=1.0, step=7.0), SCHEMA)
    found = [float(origin[name].reshape(-1)[0]) for name in ("w", "w:exp_avg", "w:exp_avg_sq", "w:step")]
    assert found == pytest.approx([1.0, 0.9**5, 0.99**5, 7.0], rel=1e-6)


def test_weight_of_examples_is_capped_by_number_or_by_the_median():
    counts = {"a": 10, "b": 20, "c": 1000}
    assert example_weights(counts, ExamplesCap()) == counts
    assert example_weights(counts, ExamplesCap(most=15)) == {"a": 10, "b": 15, "c": 15}
    assert example_weights(counts, ExamplesCap(factor=2.0)) == {"a": 10, "b": 20, "c": 40}


TERMS = UpdateRequirements(SCHEMA, frozenset(), "ab" * 32, model=update(step=4.0), plan=PLAN)


def validate(terms: UpdateRequirements = TERMS, num_examples: int = 50, **values: float) -> dict[str, Array]:
    """Return the tensors of an accepted update from `num_examples` examples."""
    meta = asdict(report(base=terms.base)) | {"num_examples": num_examples}
    packed = pack(update(**values), SCHEMA, meta, "fp32")
    return decode_and_validate_update(packed.blob, terms, encoding="fp32", raw_bytes=packed.raw_bytes)[1]


@pytest.mark.parametrize("step", [4.0, 9.0])
def test_step_count_that_the_plan_leads_to_is_accepted(step):
    assert validate(step=step)["w:step"] == step


@pytest.mark.parametrize(
    ("num_examples", "values", "named"),
    [
        (50, {"step": 10.0}, "w:step"),
        (50, {"step": 3.0}, "w:step"),
        (10, {"step": 9.0}, "w:step"),
        (50, {"step": 9.0, "first": 1.0}, "w:exp_avg"),
        (50, {"step": 9.0, "second": -1.0}, "w:exp_avg_sq"),
    ],
)
def test_moments_and_steps_that_no_plan_makes_are_out_of_range(num_examples, values, named):
    with pytest.raises(UpdateRefused, match=named) as refused:
        validate(num_examples=num_examples, **values)
    assert refused.value.reason == RefuseReason.OUT_OF_RANGE


def test_without_the_model_steps_are_not_checked_and_without_the_plan_no_moments():
    assert validate(replace(TERMS, model=None), step=1000.0)["w:step"] == 1000.0
    assert validate(replace(TERMS, plan=None), step=1000.0, first=1.0)["w:step"] == 1000.0
    with pytest.raises(UpdateRefused, match="w:exp_avg"):
        validate(replace(TERMS, model=None), first=1.0)
