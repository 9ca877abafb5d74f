"""Aggregation rules that keep the influence of bad devices small: centred clipping, trimmed mean.

All rules work on the changes that the updates make to the trained tensors. They get the updates after the bounds of
norm_clipping. Each rule reads the updates one at a time, in the order of device names, so the same updates give the same bits.

- *Centred clipping* moves a centre towards the mean in three passes. In each pass an update counts with its distance from the
  centre, but with the radius at most. Karimireddy, He and Jaggi 2021, "Learning from History for Byzantine Robust
  Optimization", algorithm 2. Here the centre begins at the global model instead of at the last round's step, so nothing is kept
  between rounds. The radius is the upper median of the distances, so it follows the training.
- *The trimmed mean* leaves out the greatest and the least share of each value. Yin et al. 2018, "Byzantine-Robust Distributed
  Learning: Towards Optimal Statistical Rates". It cannot weigh updates by their examples, and costs accuracy where the
  devices' data differ.

Moments and running statistics are averaged. An update that counts in part has a proportionally smaller weight there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.aggregation.update_norms import squared_distance, squared_norm
from fedpatch.coordinator.aggregation.weighted_mean import WeightedSum
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors

CENTRING_PASSES = 3
BLOCK_BYTES = 16 * 2**20
"""Memory of the values that the trimmed mean sorts at a time."""

_ROUNDING = 1e-9  # of the norm of the model: float32 does not distinguish nearer updates
_WHOLE = 1e-9  # 0.29 * 100 is a little less than 29 in float64

Read = Callable[[str], Tensors]
Step = dict[str, Array]
"""Trained tensors by name in float64: a change, or a place to which a change leads."""

Scratch = Callable[[tuple[int, int]], Array]
"""Makes a writable array of float32 of a shape; it may be a file if the updates do not fit into memory."""


@dataclass(frozen=True)
class RuleResult:
    """The result of a rule.

    Attributes:
        step: The change of each trained tensor.
        shares: By device, the share of its update that counts: 1 for an update that is used unchanged.
    """

    step: Step
    shares: Mapping[str, float]


class Changes:
    """The changes that updates make to the trained tensors; the updates are read again at each pass.

    Args:
        weights: Weight of each device, above 0; their order is the order of the passes.
        read: Returns the tensors of a device's update.
        base: The global model that the updates were trained on.
        schema: Names, shapes and dtypes of the tensors that travel.
    """

    def __init__(self, weights: Mapping[str, float], read: Read, base: Tensors, schema: Schema) -> None:
        total = math.fsum(weights.values())
        self.weights = {device: weights[device] / total for device in sorted(weights)}
        self.read = read
        self.shapes = {spec.name: spec.shape for spec in schema.specs if spec.trainable}
        self.base = {name: base[name].astype(np.float64) for name in self.shapes}

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        """Yield each device with the tensors of its update."""
        for device in self.weights:
            yield device, self.read(device)

    def step_to(self, place: Step) -> Step:
        """Return the change from the global model to a place."""
        return {name: values - self.base[name] for name, values in place.items()}


def clip_centred(changes: Changes, radius: float | None = None) -> RuleResult:
    """Aggregate by centred clipping.

    Args:
        radius: Greatest distance from the centre that counts, as an L2 norm; None: the upper median of the distances, measured
            before each of the first two passes.

    Returns:
        The centre after CENTRING_PASSES passes. Each pass moves it by at most the radius.

    Example:
        >>> from fedpatch.shared.tensors.arrays import TensorSpec
        >>> schema = Schema((TensorSpec("w", (1,), "float32", "weight"),))
        >>> updates = {name: {"w": np.array([value], np.float32)} for name, value in zip("abc", (1.0, 1.0, 100.0))}
        >>> changes = Changes(dict.fromkeys("abc", 1), updates.get, {"w": np.zeros(1, np.float32)}, schema)
        >>> clip_centred(changes).step["w"]
        array([1.])
    """
    centre, shares, limit = changes.base, dict[str, float](), radius
    for number in range(CENTRING_PASSES):
        distances: dict[str, float] = {}
        if radius is None and number < CENTRING_PASSES - 1:
            distances = {device: _distance(tensors, centre) for device, tensors in changes}
            limit = max(upper_median(distances.values()), _ROUNDING * _norm(centre))
        counted = WeightedSum(changes.shapes)
        for device, tensors in changes:
            distance = distances[device] if distances else _distance(tensors, centre)
            shares[device] = _share(distance, limit or 0.0)
            counted.add(tensors, shares[device] * changes.weights[device])
        rest = 1.0 - counted.weight
        centre = {name: values * rest + counted.sums[name] for name, values in centre.items()}
    return RuleResult(changes.step_to(centre), shares)


def upper_median(values: Iterable[float]) -> float:
    """Return the median of the values, the upper of two in the middle.

    While fewer than half of the updates are bad, it is at most the greatest distance of an honest update. With two devices,
    where no rule can identify the bad one, both count.

    Raises:
        IndexError: There is no value.
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _share(distance: float, limit: float) -> float:
    return 1.0 if distance <= limit else limit / distance


def trim(changes: Changes, beta: float, scratch: Scratch) -> RuleResult:
    """Aggregate by the trimmed mean of each value, without weights.

    Args:
        changes: The changes of the round, n of them with d values each.
        beta: Share of the devices that is left out at each end of each value, below 0.5.
        scratch: Makes the table of n x d values.

    Returns:
        The mean of the values that are left. The share of an update is the share of its values that is left.
    """
    devices = list(changes.weights)
    count = len(devices)
    dropped = min(math.floor(beta * count + _WHOLE), (count - 1) // 2)
    columns = sum(math.prod(shape) for shape in changes.shapes.values())
    if not columns:
        return RuleResult({}, dict.fromkeys(devices, 1.0))
    table = np.asarray(scratch((count, columns)))  # rows of np.memmap are slow
    for row, (_, tensors) in zip(table, changes, strict=True):
        for name, values in _split(row, changes.shapes).items():
            np.subtract(tensors[name], changes.base[name], out=values, casting="same_kind")
    mean, kept = np.empty(columns), np.zeros(count)
    width = max(1, BLOCK_BYTES // (8 * count))  # the values in the order of devices, and sorted
    for start in range(0, columns, width):
        block = table[:, start : start + width]
        ordered = np.ascontiguousarray(block.T)
        ordered.sort(axis=1)
        left = ordered[:, dropped : count - dropped]
        mean[start : start + width] = left.mean(axis=1, dtype=np.float64)
        least, greatest = left[:, 0].copy(), left[:, -1].copy()
        kept += np.count_nonzero((block >= least) & (block <= greatest), axis=1)
    shares = {device: float(part) for device, part in zip(devices, kept / columns, strict=True)}
    return RuleResult(_split(mean, changes.shapes), shares)


def _split(values: Array, shapes: Mapping[str, tuple[int, ...]]) -> Step:
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(values, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _norm(place: Step) -> float:
    return math.sqrt(sum(squared_norm(values) for values in place.values()))


def _distance(end: Tensors, start: Step) -> float:
    return math.sqrt(sum(squared_distance(end[name], values) for name, values in start.items()))
