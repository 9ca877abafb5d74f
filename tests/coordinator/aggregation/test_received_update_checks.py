"""Validation of updates and offers: the reasons of refusals."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.limit_syntax import Limits, NormBound
from fedpatch.coordinator.aggregation.received_update_checks import (
    UpdateRequirements,
    check_offer,
    decode_and_validate_update,
)
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tasks.metric_spec import MetricTerms, metric_terms
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.support.specs import model, report

BASE = "ab" * 32
ACCURACY, MAE, R2 = MetricTerms(), metric_terms("MAE", "min", None), MetricTerms("R2", "max", -1.0, 1.0)
PATCH = TensorSpec("bn.weight", (1,), "float32", "weight")
SCHEMA = Schema((TensorSpec("w", (2,), "float32", "weight"),))
MODEL = {"w": np.zeros(2, np.float32)}
TERMS = UpdateRequirements(SCHEMA, frozenset({"bn.weight"}), BASE, model=MODEL, limits=Limits(NormBound("reject", 2.0)))


def _read(
    schema: Schema = SCHEMA,
    w: float = 1.0,
    registered: int | None = None,
    metric: MetricTerms = ACCURACY,
    terms: UpdateRequirements = TERMS,
    **changes: Any,
) -> UpdateReport:
    """Read an update whose report has these changes."""
    tensors = {spec.name: np.full(spec.shape, w, spec.dtype) for spec in schema.specs}
    packed = pack(tensors, schema, asdict(report(base=BASE)) | changes, "fp32")
    terms, raw_bytes = replace(terms, metric=metric), packed.raw_bytes
    return decode_and_validate_update(packed.blob, terms, encoding="fp32", raw_bytes=raw_bytes, registered=registered)[
        0
    ]


@pytest.mark.parametrize(
    ("metric", "before", "after"), [(ACCURACY, 0.5, 1.0), (ACCURACY, None, None), (MAE, 1.5, 900.0)]
)
def test_update_within_the_terms_is_accepted(metric, before, after):
    found = _read(metric=metric, user_accuracy_before=before, user_accuracy_after=after)
    assert (found.train_loss, found.user_accuracy_before) == (report().train_loss, before)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        (
            {"base": "cd" * 32},
            RefuseReason.WRONG_BASE,
            "trained on the global model (cd){6}, this round's is (ab){6}$",
        ),
        ({"owner": "ann", "age": 7}, RefuseReason.DAMAGED, "the report has unknown keys: age, owner"),
        ({"x" * 300: 1}, RefuseReason.DAMAGED, "keys: x{200}$"),
        ({"num_examples": "ten"}, RefuseReason.DAMAGED, "num_examples"),
        ({"w": 3.0}, RefuseReason.NORM_BOUND, "it changes the weights by 4.24"),
        ({"w": float("nan")}, RefuseReason.NOT_FINITE, "w"),
        ({"registered": 1, "num_examples": 1000}, RefuseReason.NUM_EXAMPLES, "trained on 1000 examples, registered 1"),
        ({"user_accuracy_before": 1.5}, RefuseReason.OTHER_METRIC, "a fraction from 0 to 1"),
        ({"user_accuracy_after": -0.1}, RefuseReason.OTHER_METRIC, "a fraction from 0 to 1"),
        ({"user_accuracy_after": -2.0, "metric": R2}, RefuseReason.OTHER_METRIC, "its R2 of -2 is not"),
        ({"schema": Schema((*SCHEMA.specs, PATCH))}, RefuseReason.PRIVATE_VALUE, "bn.weight"),
        ({"schema": Schema((*SCHEMA.specs, replace(PATCH, name="x")))}, RefuseReason.SCHEMA_MISMATCH, "'x'"),
        ({"schema": Schema((replace(SCHEMA.specs[0], shape=(3,)),))}, RefuseReason.SCHEMA_MISMATCH, "shape"),
    ],
    ids=lambda value: str(value) if isinstance(value, RefuseReason) else "",
)
def test_update_is_refused_with_its_reason(changes, reason, words):
    with pytest.raises(UpdateRefused, match=words) as refused:
        _read(**changes)
    assert refused.value.reason == reason


def test_update_is_accepted_without_the_model_that_its_norm_is_measured_from():
    assert _read(terms=replace(TERMS, model=None), w=3.0).num_examples == report().num_examples


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"size_bytes": 300, "raw_bytes": 20_000}, RefuseReason.TOO_LARGE, "20000"),
        ({"chunk_count": 99}, RefuseReason.DAMAGED, "99"),
        ({"schema": "00" * 32}, RefuseReason.SCHEMA_MISMATCH, "0{12} in fp32, requested [0-9a-f]{12} in"),
        ({"encoding": "masked-u8"}, RefuseReason.SCHEMA_MISMATCH, "in masked-u8, requested .* in fp32"),
        ({"encoding": "fp16"}, RefuseReason.LATE, "offered in fp16, and requested again in fp32 since"),
    ],
)
def test_offer_is_refused_with_its_reason(changes, reason, words):
    offered = model()
    check_offer(offered, schema=offered.schema, encoding="fp32", max_bytes=10_000)
    with pytest.raises(UpdateRefused, match=words) as refused:
        check_offer(replace(offered, **changes), schema=offered.schema, encoding="fp32", max_bytes=10_000)
    assert refused.value.reason == reason
