"""Aggregation rules that keep the influence of bad devices small: centred clipping, bucketing, trimmed mean.

All rules work on the changes that the updates make to the trained tensors. They see the updates after the bounds of
norm_clipping. Each reads the updates one at a time, in the order of device names, so the same updates give the same bits.

- *Centred clipping* moves a centre towards the mean in three passes. In each pass an update counts with its distance from the
  centre, at most the radius. Karimireddy, He and Jaggi 2021, "Learning from History for Byzantine Robust Optimization",
  algorithm 2. Here the centre begins at the global model instead of at the last round's step, so nothing is kept between
  rounds, and the radius is the upper median of the distances, so it follows the training.
- *Bucketing* takes the geometric median of the means of small groups, by the smoothed Weiszfeld algorithm. Karimireddy, He and
  Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing"; Pillutla, Kakade and Harchaoui 2019, "Robust
  Aggregation for Federated Learning".
- *The trimmed mean* leaves out the greatest and the least share of each value. Yin et al. 2018, "Byzantine-Robust Distributed
  Learning: Towards Optimal Statistical Rates". It cannot weigh updates by their examples, and costs accuracy where the
  devices' data differ.

Moments and running statistics are averaged. An update that counts in part weighs as much less there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.aggregation.norm_clipping import squared_distance, squared_norm
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors

CENTRING_PASSES = 3
WEISZFELD_PASSES = 8
BLOCK_BYTES = 64 * 2**20
"""Memory of the values that the trimmed mean sorts at a time."""

_SMOOTHING = 1e-6  # of the norm of the mean: keeps the weight of an update at the median finite

Read = Callable[[str], Tensors]
Step = dict[str, Array]
"""A change of the trained tensors by name, in float64."""

Scratch = Callable[[tuple[int, int]], Array]
"""Makes a writable array of float32 of a shape; a file in memory's place where the updates do not fit into memory."""


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
    """The changes that updates make to the trained tensors, read anew at each pass.

    Args:
        weights: Weight of each device, above 0; their order is the order of the passes.
        read: Returns the tensors of a device's update.
        base: The global model that the updates were trained on.
        schema: Names, shapes and dtypes of the tensors that travel.
    """

    def __init__(self, weights: Mapping[str, float], read: Read, base: Tensors, schema: Schema) -> None:
        total = math.fsum(weights.values())
        self.weights = {device: weights[device] / total for device in sorted(weights)}
        self._read = read
        self._base = base
        self.names = [spec.name for spec in schema.specs if spec.trainable]
        self.shapes = {spec.name: spec.shape for spec in schema.specs if spec.trainable}

    def __iter__(self) -> Iterator[tuple[str, Step]]:
        for device in self.weights:
            yield device, self.of(device)

    def of(self, device: str) -> Step:
        """Return the change that the update of a device makes."""
        tensors = self._read(device)
        return {name: np.subtract(tensors[name], self._base[name], dtype=np.float64) for name in self.names}

    def base_digest(self) -> str:
        """Return a digest of the trained tensors of the global model, which is another one in each round."""
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(np.ascontiguousarray(self._base[name]).tobytes())
        return digest.hexdigest()

    def zero(self) -> Step:
        """Return a change that changes nothing."""
        return {name: np.zeros(shape, np.float64) for name, shape in self.shapes.items()}


def clip_centred(changes: Changes, radius: float | None = None) -> RuleResult:
    """Aggregate by centred clipping.

    Args:
        changes: The changes of the round.
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
    centre, shares, limit = changes.zero(), dict[str, float](), radius
    for number in range(CENTRING_PASSES):
        if radius is None and number < CENTRING_PASSES - 1:
            limit = upper_median(_distance(change, centre) for _, change in changes)
        moved = {name: values.copy() for name, values in centre.items()}
        for device, change in changes:
            apart = {name: np.subtract(values, centre[name]) for name, values in change.items()}
            norm = math.sqrt(sum(squared_norm(values) for values in apart.values()))
            shares[device] = _share(norm, limit or 0.0)
            _add(moved, apart, shares[device] * changes.weights[device])
        centre = moved
    return RuleResult(centre, shares)


def upper_median(values: Iterable[float]) -> float:
    """Return the median of the values, the upper of two in the middle.

    While fewer than half of the updates are bad, it is at most the greatest distance of an honest one. Of two devices, of which
    no rule can tell the bad one, it lets both count.

    Raises:
        IndexError: There is no value.
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _share(distance: float, limit: float) -> float:
    return 1.0 if distance <= limit else limit / distance


def take_geometric_median(changes: Changes, bucket_size: int) -> RuleResult:
    """Aggregate by the geometric median of the weighted means of buckets.

    Args:
        changes: The changes of the round.
        bucket_size: Updates in a bucket; the last bucket may have fewer.

    Returns:
        The smoothed geometric median after WEISZFELD_PASSES passes. The share of an update is the weight of its bucket by the
        greatest weight of a bucket.
    """
    buckets = draw_buckets(list(changes.weights), bucket_size, changes.base_digest())
    factors = [1.0] * len(buckets)
    median = changes.zero()
    for device, change in changes:
        _add(median, change, changes.weights[device])
    least = _SMOOTHING * (_distance(median, changes.zero()) or 1.0)
    for _ in range(WEISZFELD_PASSES):
        total, sums = 0.0, changes.zero()
        for number, bucket in enumerate(buckets):
            size, mean = _bucket_mean(changes, bucket)
            factors[number] = 1.0 / max(_distance(mean, median), least)
            _add(sums, mean, size * factors[number])
            total += size * factors[number]
        median = {name: values / total for name, values in sums.items()}
    greatest = max(factors)
    shares = {device: factor / greatest for bucket, factor in zip(buckets, factors, strict=True) for device in bucket}
    return RuleResult(median, shares)


def draw_buckets(devices: Sequence[str], bucket_size: int, seed: str) -> list[list[str]]:
    """Return the devices in buckets, which depend on the set of devices and the seed alone.

    Args:
        devices: The devices in any order.
        bucket_size: Devices in a bucket; the last one may have fewer.
        seed: Changes in each round.
    """
    drawn = sorted(devices, key=lambda device: hashlib.sha256(f"{seed}/{device}".encode()).digest())
    return [sorted(drawn[start : start + bucket_size]) for start in range(0, len(drawn), bucket_size)]


def _bucket_mean(changes: Changes, bucket: Sequence[str]) -> tuple[float, Step]:
    size, mean = math.fsum(changes.weights[device] for device in bucket), changes.zero()
    for device in bucket:
        _add(mean, changes.of(device), changes.weights[device] / size)
    return size, mean


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
    count, dropped = len(devices), int(beta * len(devices))
    columns = sum(math.prod(shape) for shape in changes.shapes.values())
    table = scratch((count, columns))
    for row, (_, change) in enumerate(changes):
        table[row] = np.concatenate([change[name].reshape(-1) for name in changes.names]) if changes.names else ()
    mean, kept = np.empty(columns), np.zeros(count)
    width = max(1, BLOCK_BYTES // (16 * count))  # the values and their ranks
    for start in range(0, columns, width):
        block = np.asarray(table[:, start : start + width], np.float64)
        ranks = np.argsort(block, axis=0, kind="stable")[dropped : count - dropped]
        mean[start : start + width] = np.take_along_axis(block, ranks, axis=0).mean(axis=0)
        kept += np.bincount(ranks.reshape(-1), minlength=count)
    shares = {device: float(part) for device, part in zip(devices, kept / max(1, columns), strict=True)}
    return RuleResult(_split(mean, changes.shapes), shares)


def _split(values: Array, shapes: Mapping[str, tuple[int, ...]]) -> Step:
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(values, ends[:-1]) if shapes else []
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _distance(change: Step, centre: Step) -> float:
    return math.sqrt(sum(squared_distance(values, centre[name]) for name, values in change.items()))


def _add(total: Step, change: Step, factor: float) -> None:
    """Add factor * change in place."""
    for name, values in total.items():
        values += np.multiply(change[name], factor)
