"""Data specs of the bundled tasks, and the partitions of examples among devices that they name.

    shard:I/N     the paper's non-IID split (section 4.1); this is device I of N, numbered from 0
    even:I/N      the same, but the shards' sizes are rounded so that training and test shards end at the same fractions
    aligned:I/N   the same, but a device is tested only on labels that it trains on

    ,seed=7                another assignment of shards (default 0); the same on every device of a fleet
    ,noisy                 this device's training inputs are noisy, with the task's usual standard deviation
    ,noise=3.0             the same, with this standard deviation
    ,noisy-fraction=0.2    int(0.2 N) devices, drawn by the seed, are noisy; `noise=` then sets how much
    ,validation=0.1        this share of the training examples is validation data (default 0: the paper's split)

Every device computes the whole partition and keeps its own part, so that N devices with one seed need no communication.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpatch.shared.errors import DataError, UsageError

SHARDS_PER_DEVICE = 2
MAX_VALIDATION_SHARE = 0.5  # as that of Task.validation_share

KINDS = ("aligned", "even", "shard")
_EXAMPLE = "shard:0/10 or aligned:3/200,seed=7,noisy-fraction=0.2"
_PLACE = re.compile(r"(?P<kind>\w+):(?P<index>[0-9]{1,9})/(?P<count>[0-9]{1,9})")
_SEED = re.compile(r"[0-9]{1,18}")

# Independent random streams of one seed: the draws for one purpose never change those for another.
_ASSIGNMENT, _NOISY_DEVICES, _NOISE = range(3)


@dataclass(frozen=True)
class DataSpec:
    """A parsed data spec.

    `noisy`: this device is noisy, with any draw. `noise`: standard deviation, or None for the task's usual one.
    `noisy_fraction`: this share of all devices is drawn to be noisy. `validation`: this share of the device's training examples
    is held out as validation data.
    """

    kind: str
    index: int
    count: int
    seed: int = 0
    noisy: bool = False
    noise: float | None = None
    noisy_fraction: float = 0.0
    validation: float = 0.0


def parse_data_spec(text: str) -> DataSpec:
    """Parse a data spec; raises UsageError naming the part that is wrong."""
    place, *options = text.split(",")
    match = _PLACE.fullmatch(place)
    if match is None:
        raise _wrong(text, f"{place!r} is not KIND:I/N")
    kind, index, count = match["kind"], int(match["index"]), int(match["count"])
    if kind not in KINDS:
        raise _wrong(text, f"kind {kind!r} is unknown (known: {', '.join(KINDS)})")
    if index >= count:
        raise _wrong(text, f"there is no device {index} among {count}; they are numbered from 0")
    given: dict[str, Any] = {}
    for option in options:
        name, value = _parse_option(text, option)
        if name in given:
            raise _wrong(text, f"{option.partition('=')[0]!r} is given twice")
        given[name] = value
    if "noisy" in given and ("noise" in given or "noisy_fraction" in given):
        raise _wrong(text, "'noisy' stands alone; leave it out beside 'noise' or 'noisy-fraction'")
    if "noise" in given and "noisy_fraction" not in given:
        given["noisy"] = True
    return DataSpec(kind, index, count, **given)


def noise_std(spec: DataSpec, usual: float) -> float:
    """Standard deviation of the noise on this device's training inputs; 0 where it is not noisy."""
    if not spec.noisy and not _is_drawn(spec):
        return 0.0
    return usual if spec.noise is None else spec.noise


def _is_drawn(spec: DataSpec) -> bool:
    drawn = int(spec.noisy_fraction * spec.count)
    if not drawn:
        return False
    order = np.random.default_rng([spec.seed, _NOISY_DEVICES]).permutation(spec.count)
    return spec.index in order[:drawn]


def add_noise(inputs: np.ndarray, std: float, spec: DataSpec) -> np.ndarray:
    """Add Gaussian noise to inputs (paper, section 4.2), different for each device.

    Args:
        inputs: Values from 0 to 1.
        spec: Data spec, whose seed and device index seed the noise.

    Returns:
        The noisy inputs, clipped to 0 to 1.
    """
    rng = np.random.default_rng([spec.seed, _NOISE, spec.index])
    noise = rng.standard_normal(inputs.shape, dtype=np.float32) * np.float32(std)
    noisy: np.ndarray = np.clip(inputs + noise, 0.0, 1.0).astype(inputs.dtype)
    return noisy


@dataclass(frozen=True)
class Split:
    """Partition of a data set among the devices of one kind, count and seed.

    Attributes:
        kind: One of KINDS.
        train_order: Positions of the training examples, sorted by label.
        train_bounds: Start of each training shard in that order, and the end of the last one.
        test_order: Positions of the test examples, sorted by label.
        test_bounds: The same for test shards.
        shards: Shards of each device, shape (devices, SHARDS_PER_DEVICE).
    """

    kind: str
    train_order: np.ndarray
    train_bounds: np.ndarray
    test_order: np.ndarray
    test_bounds: np.ndarray
    shards: np.ndarray

    @classmethod
    def named_by(cls, spec: DataSpec, train_labels: np.ndarray, test_labels: np.ndarray) -> Split:
        """Compute the partition that `spec` names, for all devices.

        The examples, sorted by label, are cut into 2N shards of (almost) equal size; each device gets two, at random.
        With `shard` the test examples are cut separately in the same way, and assigned alike. Because the shards' sizes are
        rounded and the labels are not equally frequent in both parts, the two cuts differ slightly: a few test examples
        have a label that their device never trained on (7.5 % of MNIST's at N = 400). `even` rounds the shards' ends
        instead of their sizes, so that only the frequencies of the labels differ (1.2 %). `aligned` puts a test example
        where training examples of its label are.

        Args:
            spec: Data spec of any of the devices.
            train_labels: Labels of the training examples, shape (n,).
            test_labels: Labels of the test examples, shape (m,).

        Returns:
            The partition.

        Raises:
            DataError: There are too few examples for N devices.
        """
        shards = SHARDS_PER_DEVICE * spec.count
        train_order, test_order = _by_label(train_labels), _by_label(test_labels)
        cut = _cut_evenly if spec.kind == "even" else _cut
        train_bounds = cut("training", len(train_order), shards)
        if spec.kind == "aligned":
            places = _counterparts(train_labels[train_order], test_labels[test_order])
            test_bounds = np.searchsorted(places, train_bounds)  # ascending, because both parts are sorted by label
        else:
            test_bounds = cut("test", len(test_order), shards)
        drawn = np.random.default_rng([spec.seed, _ASSIGNMENT]).permutation(shards)
        assigned = drawn.reshape(spec.count, SHARDS_PER_DEVICE)
        return cls(spec.kind, train_order, train_bounds, test_order, test_bounds, assigned)

    def of(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the training and of the test examples of device `index`, in the order of their labels.

        Raises DataError where an aligned split has no test examples for it.
        """
        mine = np.sort(self.shards[index])
        train = _joined(self.train_order, self.train_bounds, mine)
        test = _joined(self.test_order, self.test_bounds, mine)
        if len(test) == 0:
            raise DataError(
                f"{self.kind}:{index}/{len(self.shards)} leaves this device without test examples; divide among fewer"
            )
        return train, test


def partitions(
    specs: Sequence[DataSpec], train_labels: np.ndarray, test_labels: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the positions of each device's training and test examples.

    Args:
        specs: Data spec of each device. A partition that several of them name is computed once.
        train_labels: Labels of the training examples, shape (n,).
        test_labels: Labels of the test examples, shape (m,).

    Returns:
        For each device, positions of training and of test examples.

    Raises:
        DataError: There are too few examples.
    """
    splits: dict[tuple[str, int, int], Split] = {}
    parts = []
    for spec in specs:
        key = (spec.kind, spec.count, spec.seed)
        if key not in splits:
            splits[key] = Split.named_by(spec, train_labels, test_labels)
        parts.append(splits[key].of(spec.index))
    return parts


def _by_label(labels: np.ndarray) -> np.ndarray:
    return np.argsort(labels, kind="stable")


def _cut(part: str, size: int, shards: int) -> np.ndarray:
    """Return the start of each shard, and the end of the last one; the first size % shards are one example longer."""
    _require_enough(part, size, shards)
    numbers = np.arange(shards + 1)
    return numbers * (size // shards) + np.minimum(numbers, size % shards)


def _cut_evenly(part: str, size: int, shards: int) -> np.ndarray:
    """The same, but shard i ends at the fraction (i + 1) / shards of the examples, rounded down."""
    _require_enough(part, size, shards)
    return np.arange(shards + 1) * size // shards


def _require_enough(part: str, size: int, shards: int) -> None:
    if size < shards:
        most = size // SHARDS_PER_DEVICE
        raise DataError(f"{size} {part} examples cannot be cut into {shards} shards; at most {most} devices can share")


def _joined(order: np.ndarray, bounds: np.ndarray, shards: np.ndarray) -> np.ndarray:
    return np.concatenate([order[bounds[shard] : bounds[shard + 1]] for shard in shards])


def _counterparts(train_sorted: np.ndarray, test_sorted: np.ndarray) -> np.ndarray:
    """For each sorted test label, the sorted training example at the same relative place within that label."""
    places = np.empty(len(test_sorted), dtype=np.int64)
    for label in np.unique(test_sorted):
        train_at = np.flatnonzero(train_sorted == label)
        test_at = np.flatnonzero(test_sorted == label)
        if len(train_at) == 0:
            raise DataError(f"label {label} has test examples but no training examples; use 'shard', not 'aligned'")
        places[test_at] = train_at[np.arange(len(test_at)) * len(train_at) // len(test_at)]
    return places


def _parse_option(text: str, option: str) -> tuple[str, int | float | bool]:
    name, equals, value = option.partition("=")
    if name == "noisy" and not equals:
        return "noisy", True
    if name == "seed":
        if not _SEED.fullmatch(value):
            raise _wrong(text, f"{option!r}: the seed must be a whole number, 0 or more")
        return "seed", int(value)
    if name == "noise":
        std = _number(value)
        if not 0.0 < std < math.inf:
            raise _wrong(text, f"{option!r}: the standard deviation must be a number above 0")
        return "noise", std
    if name == "noisy-fraction":
        fraction = _number(value)
        if not 0.0 <= fraction <= 1.0:
            raise _wrong(text, f"{option!r}: the fraction must be a number from 0 to 1")
        return "noisy_fraction", fraction
    if name == "validation":
        share = _number(value)
        if not 0.0 <= share <= MAX_VALIDATION_SHARE:
            raise _wrong(text, f"{option!r}: the share must be a number from 0 to {MAX_VALIDATION_SHARE:g}")
        return "validation", share
    raise _wrong(text, f"option {option!r} is unknown (known: seed=, noise=, noisy, noisy-fraction=, validation=)")


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan  # fits no range, so the caller's message names the expected values


def _wrong(text: str, problem: str) -> UsageError:
    return UsageError(f"data spec {text!r}: {problem}; for example {_EXAMPLE}")
