"""A device's vector: its step, clipped and rounded to the grid, and its report as limbs.

A value is w * step / range * top, cut off at +-top and rounded at random, so that its expectation is exact; w is
min(class, weight_cap) / weight_cap. The class is coarse, or the same for all (`weight_class`): sums over several rounds are a
system of linear equations, by which exact numbers of examples could be computed. The part of the step that the vector lacks, by
the rounding and the cut, is not added to a later step (no error feedback): with it, a sum of one round would hold a part of an
earlier step, which other devices hid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from fedpatch.shared.masking.vector_layout import BINS, MEASURES, VectorLayout, to_limbs
from fedpatch.shared.tasks.gains import gain_of
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Tensors, TensorSpec
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.messages import UpdateReport

MEASURE_OFFSET = 2.0**31
MEASURE_STEPS = 2.0**20
"""A measure x travels as round((x + MEASURE_OFFSET) * MEASURE_STEPS): to a millionth, from -2^31 to 2^31."""

RATIO_STEPS = 2.0**16
_BLOCK = 2**14
"""Values that are computed at a time. Whole tensors take three times as long, mostly for the first access to memory."""

MAX_NORM_RATIO = 4.0
"""A norm counts as at most this multiple of the clip, which limits the effect of one device on the mean norm."""


def weight_class(num_examples: int, *, hidden_as: int = 0) -> int:
    """Return the number of examples that a device reports in its vector: the nearest power of 4.

    Args:
        num_examples: Its examples, at least 1.
        hidden_as: If not 0, this number is returned: the owner hides the number of examples.

    Example:
        >>> [weight_class(count) for count in (1, 3, 10, 100, 600)], weight_class(600, hidden_as=50)
        ([1, 4, 16, 64, 1024], 50)
    """
    return hidden_as or 4 ** round(math.log(max(num_examples, 1), 4))


def step_between(specs: Iterable[TensorSpec], model: Tensors, update: Tensors) -> dict[str, Array]:
    """Return the tensors after training minus the global model's, by name.

    A value that is not trained and not finite in the model, such as the minus infinity of a causal mask, never changes: its
    step is 0.
    """
    return {spec.name: _step(spec, model[spec.name], update[spec.name]) for spec in specs}


def _step(spec: TensorSpec, start: Array, end: Array) -> Array:
    if spec.trainable or (changes := np.isfinite(start)).all():
        return np.asarray(end - start)
    return np.subtract(end, start, out=np.zeros_like(start), where=changes)


def make_vector(
    layout: VectorLayout,
    *,
    step: Tensors,
    report: UpdateReport,
    metric: MetricTerms,
    seed: int,
) -> Array:
    """Return the vector of a device.

    Args:
        step: Tensors after training minus the global model's (`step_between`); others than `layout.specs` are ignored.
        report: Report of the training; its examples are a `weight_class`.
        seed: Seed of the rounding.

    Returns:
        Elements modulo 2^bits, shape (layout.size,), not masked yet.
    """
    rng = np.random.default_rng(seed)
    cap = layout.terms.weight_cap
    weight = min(report.num_examples, cap)
    # The clip is for trained tensors; statistics are bounded by the grid alone.
    trained = [block for spec in layout.specs if spec.trainable for block in _blocks(step[spec.name])]
    norm = math.sqrt(sum(float(np.square(block).sum()) for block in trained))
    within = min(1.0, layout.terms.clip / norm) if norm else 1.0
    elements, spreads, clipped = np.empty(layout.size, layout.dtype), {}, 0
    codes, end = elements.view(f"<i{layout.dtype.itemsize}"), 0
    for spec, scale in zip(layout.specs, layout.ranges, strict=True):
        unit = scale / layout.top * cap / max(weight, 1)  # one code in units of the step
        squares, begin = 0.0, end
        for block in _blocks(step[spec.name]):
            exact = block * ((within if spec.trainable else 1.0) / unit)
            code = np.clip(exact, -layout.top, layout.top)
            code += rng.random(len(code))
            np.floor(code, out=code)
            codes[end : end + len(code)] = code
            end += len(code)
            clipped += int(np.count_nonzero(np.abs(exact) > layout.top))
            squares += float(np.square(exact).sum())
        spreads[f"spread {spec.name}"] = _ratio(math.sqrt(squares / max(end - begin, 1)) / layout.top)
    figures = _figures(report, metric) | spreads
    figures |= {"weight": weight, "clipped_values": clipped}
    figures["norm"] = _ratio(min(norm / layout.terms.clip, MAX_NORM_RATIO))
    elements[end:] = [limb for name, bits in layout.figures for limb in to_limbs(figures.get(name, 0), bits)]
    return elements


def _blocks(step: Array) -> Iterator[Array]:
    """Yield the values of a tensor in blocks of float64."""
    flat = step.reshape(-1)
    for place in range(0, flat.size, _BLOCK):
        yield flat[place : place + _BLOCK].astype(np.float64)


def _ratio(value: float) -> int:
    return round(min(value, 2.0**15) * RATIO_STEPS)


def _figures(report: UpdateReport, metric: MetricTerms) -> dict[str, int]:
    """Return the figures of a report; a figure that was not measured is left out."""
    before, after = report.user_accuracy_before, report.user_accuracy_after
    alone = report.user_accuracy_independent
    gain = None if alone is None or before is None else gain_of(before, alone, metric)
    gain_after = None if alone is None or after is None else gain_of(after, alone, metric)
    measures = dict(zip(MEASURES, (report.train_loss, before, after, alone, gain, gain_after), strict=True))
    figures = {"num_examples": report.num_examples}
    for name, value in measures.items():
        if value is not None:
            figures |= {name: round((value + MEASURE_OFFSET) * MEASURE_STEPS), f"{name}_measured": 1}
    if gain is not None:
        figures |= {"gaining": int(gain > 0), "losing": int(gain < 0)}
    if before is not None and (place := bin_of(before, metric)) is not None:
        figures[f"bin_{place}"] = 1
    return figures


def bin_of(value: float, metric: MetricTerms) -> int | None:
    """Return the bin of a user accuracy; None for a metric without limits, which has no histogram."""
    if -MAX_MEASURE in (metric.least, metric.most) or MAX_MEASURE in (metric.least, metric.most):
        return None
    share = (value - metric.least) / (metric.most - metric.least)
    return max(0, min(int(share * BINS), BINS - 1))
