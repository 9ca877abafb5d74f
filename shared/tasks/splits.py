"""Splits of a device's examples into training and test data, and shards of a data set for many devices.

Each split returns boolean masks over the examples, which know their part: `windows.device_data(*splits.block_split(windows,
block=500))`. A split of `Examples` is a split of their readings: a window that lies in several parts is in none of them.

    examples                                        split
    independent of each other                       random_split, stratified_split (rare classes)
    readings in order of time, all there already    time_split
    readings in order of time, in files that grow   block_split
    several of one person, session or machine       group_split

Neighbours in time, or several examples of one person, are alike. If one of them is for training and the other for testing, the
model is tested on examples like those that it has seen, and its accuracy is too high. The last three splits prevent that.

Each shard function returns, for each device, the positions of its examples.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.examples import Examples
from fedpatch.shared.tasks.part_masks import TEST, TRAIN, Mask, of_part
from fedpatch.shared.tasks.separation import in_every_reading

__all__ = [
    "block_split",
    "dirichlet_shards",
    "equal_shards",
    "group_shards",
    "group_split",
    "label_shards",
    "random_split",
    "stratified_split",
    "time_split",
]

Positions = NDArray[np.int64]


def random_split(examples: int | Examples, test_share: float = 0.2, seed: int = 0) -> Mask:
    """Draw test examples at random, for examples that are independent of each other.

    Args:
        examples: The examples, or their number.
        test_share: Share of them that is for testing, above 0 and below 1.
        seed: The same seed gives the same split.

    Returns:
        A mask of shape (n,): True for test examples.

    Raises:
        DataError: One part would be empty, or the examples are windows that overlap.
        UsageError: `test_share` is not above 0 and below 1.

    Example:
        >>> from fedpatch import splits
        >>> int(splits.random_split(10, test_share=0.2).sum())
        2
    """
    count = _independent(examples)
    test = np.zeros(count, bool)
    test[np.random.default_rng(seed).permutation(count)[: _test_count(count, test_share)]] = True
    return of_part(_both_parts(test), TEST)


def stratified_split(labels: ArrayLike | Examples, test_share: float = 0.2, seed: int = 0) -> Mask:
    """Draw the same share of each class, so that a rare one is in both parts; a class of one example is for training.

    Args:
        labels: The examples, or the class of each.
        test_share: Share of each class that is for testing, above 0 and below 1.
        seed: The same seed gives the same split.

    Returns:
        A mask of shape (n,): True for test examples.

    Raises:
        DataError: One part would be empty, or the examples are windows that overlap.
        UsageError: `test_share` is not above 0 and below 1.

    Example:
        >>> from fedpatch import splits
        >>> labels = ["common"] * 8 + ["rare"] * 2
        >>> splits.stratified_split(labels)[8:].sum().item()
        1
    """
    if isinstance(labels, Examples):
        _independent(labels)
    found = _named(labels.y if isinstance(labels, Examples) else labels, "class")
    test = np.zeros(len(found), bool)
    rng = np.random.default_rng(seed)
    for label in np.unique(found):
        members = rng.permutation(np.flatnonzero(found == label))
        if len(members) > 1:
            test[members[: _test_count(len(members), test_share)]] = True
    return of_part(_both_parts(test), TEST)


def time_split(times: ArrayLike | Examples, test_share: float = 0.2, gap: float = 0.0) -> tuple[Mask, Mask]:
    """Train on the past and test on what came after it.

    Args:
        times: The examples, or the time of each, in any order and unit; equal times stay in one part.
        test_share: Share of the examples, the latest ones, that is for testing.
        gap: Training examples are farther than this from the first test example, in the unit of `times`; 0: no gap.

    Returns:
        Masks of the training and of the test examples; an example in the gap, and a window over the limit, is in neither.

    Raises:
        DataError: One part would be empty.
        UsageError: `test_share` is not above 0 and below 1, or examples have no times.

    Example:
        >>> from fedpatch import splits
        >>> train, test = splits.time_split([8.0, 9.0, 10.0, 11.0, 12.0], test_share=0.2)
        >>> test.tolist()
        [False, False, False, False, True]
    """
    begins, when = _times(times)
    cut = np.sort(when)[-_test_count(len(when), test_share) :][:1]  # nothing where there is no example
    test = begins >= cut
    if not test.any() and len(when):  # each of the last windows began before the first of them ended
        cut = begins.max(keepdims=True)
        test = begins >= cut
    _both_parts(test)
    train = when < cut
    if gap and when.dtype.kind in "iu":
        # The difference of unsigned or short numbers would wrap; after the cut it may, because `train` is False there.
        wide = when if when.dtype == np.uint64 else when.astype(np.int64)
        train &= begins[test].min().astype(wide.dtype) - wide > gap
    elif gap:
        train = when < cut - gap
    if not train.any():
        raise DataError(f"a gap of {gap:g} leaves no training example; take a smaller one, or collect more examples")
    return of_part(train, TRAIN), of_part(test, TEST)


def block_split(
    examples: int | Examples, block: int, every: int = 5, gap: int = 0, name: str = ""
) -> tuple[Mask, Mask]:
    """Test on whole blocks of consecutive readings; the split of an example never changes while more are added after it.

    Args:
        examples: The examples, of which each file is split by itself; or the number of examples, which are then readings.
        block: Readings in a block: more than the consecutive readings that are alike, and several windows.
        every: One block of so many, at a place that the name draws, is for testing; at least 2.
        gap: So many readings on each side of a test block are left out of training.
        name: Name of the file or session; other names have their test blocks elsewhere. The file's own name is added.

    Returns:
        Masks of the training and of the test examples; a window over the end of a block is in neither. One of them may be
        empty if there are few examples.

    Raises:
        UsageError: `block`, `every` or `gap` is out of its range, or no window fits into a block.

    Example:
        >>> from fedpatch import splits
        >>> train, test = splits.block_split(12, block=3, every=2, gap=1)
        >>> bool((train & test).any())
        False
    """
    if not all(isinstance(one, int | np.integer) for one in (block, every, gap)):
        raise UsageError(f"block {block!r}, every {every!r}, gap {gap!r}: they must be integers")
    if block < 1 or every < 2 or gap < 0:
        raise UsageError(
            f"block {block}, every {every}, gap {gap}: use a block of 1 or more, every 2 or more, gap 0 or more"
        )
    if not isinstance(examples, Examples):
        train, test = _blocks(np.arange(_count(examples)), block, every, gap, name)
        return of_part(train, TRAIN), of_part(test, TEST)
    readings = examples.readings
    longest = int((readings[:, 2] - readings[:, 1]).max(initial=0)) + 1
    if longest > block:
        raise UsageError(f"a block of {block} readings holds no window of {longest}; take blocks of several windows")

    def part(number: int) -> Mask:
        return in_every_reading(
            readings,
            lambda file, places: _blocks(
                places, block, every, gap, name + examples.sources[file // max(1, len(examples.groups))]
            )[number],
        )

    return of_part(part(0), TRAIN), of_part(part(1), TEST)


def group_split(groups: Sequence[Any] | ArrayLike | Examples, test_share: float = 0.2, seed: int = 0) -> Mask:
    """Keep all examples of a group (a person, a session, a machine) in one part.

    Args:
        groups: The examples, or the group of each.
        test_share: Share of the *groups* that is for testing; at least one group.
        seed: The same seed gives the same split.

    Returns:
        A mask of shape (n,): True for test examples.

    Raises:
        DataError: There are fewer than two groups.
        UsageError: `test_share` is not above 0 and below 1, or examples have no groups.

    Example:
        >>> from fedpatch import splits
        >>> splits.group_split(["ann", "ann", "bob"]).tolist() in ([True, True, False], [False, False, True])
        True
    """
    if isinstance(groups, Examples):
        if groups.group is None:
            raise UsageError("the examples have no groups; name the column with group=...")
        groups = groups.group
    found = _named(groups, "group")
    names = np.unique(found)
    if len(names) < 2:
        raise DataError(
            f"there are {len(names)} groups, and a split by group needs two; split by time or by block instead"
        )
    chosen = np.random.default_rng(seed).permutation(names)[: _test_count(len(names), test_share)]
    return of_part(_both_parts(np.isin(found, chosen)), TEST)


def equal_shards(count: int, devices: int, seed: int = 0) -> list[Positions]:
    """Divide examples at random into equal parts.

    Args:
        count: Number of examples.
        devices: Number of devices.
        seed: The same seed gives the same shards.

    Returns:
        For each device the positions of its examples, in order.

    Raises:
        DataError: There are fewer examples than devices.

    Example:
        >>> from fedpatch import splits
        >>> [len(shard) for shard in splits.equal_shards(10, devices=3)]
        [4, 3, 3]
    """
    if not 1 <= devices <= count:
        raise DataError(f"{count} examples cannot be shared among {devices} devices; take from 1 to {count}")
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(count), devices)]


def label_shards(labels: ArrayLike, devices: int, per_device: int = 2, seed: int = 0) -> list[Positions]:
    """Divide examples so that each device has few classes: `per_device` shards of the examples sorted by class.

    Args:
        labels: Class of each example.
        devices: Number of devices.
        per_device: Shards of each device; the paper has 2.
        seed: The same seed gives the same shards.

    Returns:
        For each device the positions of its examples, in order.

    Raises:
        DataError: There are fewer examples than shards.

    Example:
        >>> from fedpatch import splits
        >>> len(splits.label_shards([0, 1, 2, 3] * 5, devices=2, per_device=2))
        2
    """
    found = np.asarray(labels)
    shards = devices * per_device
    if devices < 1 or per_device < 1 or len(found) < shards:
        raise DataError(f"{len(found)} examples cannot be cut into {shards} shards; share them among fewer devices")
    parts = np.array_split(np.argsort(found, kind="stable"), shards)
    drawn = np.random.default_rng(seed).permutation(shards).reshape(devices, per_device)
    return [np.sort(np.concatenate([parts[one] for one in mine])) for mine in drawn]


def dirichlet_shards(
    labels: ArrayLike, devices: int, alpha: float = 0.5, seed: int = 0, least: int = 5
) -> list[Positions]:
    """Divide each class by shares drawn from a Dirichlet distribution: devices have unequal class mixes and sizes.

    Hsu et al. 2019, section 3; shares are drawn again, up to 100 times, until each device has `least` examples.

    Args:
        labels: Class of each example.
        devices: Number of devices.
        alpha: Concentration, above 0: small values give each device few classes, large ones nearly the same mix to all.
        seed: The same seed gives the same shards.
        least: Fewest examples of a device.

    Returns:
        For each device the positions of its examples, in order.

    Raises:
        DataError: A device would have fewer than `least` examples.
        UsageError: `alpha` is not above 0.

    Example:
        >>> from fedpatch import splits
        >>> sum(len(shard) for shard in splits.dirichlet_shards([0, 1] * 50, devices=4))
        100
    """
    if not alpha > 0:
        raise UsageError(f"alpha is {alpha:g}; it must be above 0")
    found, rng = np.asarray(labels), np.random.default_rng(seed)
    for _ in range(100 if 0 < devices * least <= len(found) else 0):
        owner = np.empty(len(found), np.int64)
        for one in np.unique(found):
            mine = rng.permutation(np.flatnonzero(found == one))
            ends = np.floor(np.cumsum(rng.dirichlet(np.full(devices, alpha))) * len(mine) + 0.5)[:-1]
            owner[mine] = np.searchsorted(ends, np.arange(len(mine)), side="right")
        if np.bincount(owner, minlength=devices).min() >= least:
            return [np.flatnonzero(owner == device) for device in range(devices)]
    raise DataError(
        f"{len(found)} examples cannot be shared among {devices} devices with at least {least} each and alpha {alpha:g}; "
        "take fewer devices, or a larger alpha"
    )


def group_shards(groups: Sequence[Any] | ArrayLike, devices: int, seed: int = 0) -> list[Positions]:
    """Give each device all examples of some groups (persons, machines); numbers of groups differ by one at most.

    Args:
        groups: Group of each example.
        devices: Number of devices.
        seed: The same seed gives the same shards.

    Returns:
        For each device the positions of its examples, in order.

    Raises:
        DataError: There are fewer groups than devices.

    Example:
        >>> from fedpatch import splits
        >>> [shard.tolist() for shard in splits.group_shards(["ann", "ann"], devices=1)]
        [[0, 1]]
    """
    found = _named(groups, "group")
    names = np.unique(found)
    if not 1 <= devices <= len(names):
        raise DataError(f"{len(names)} groups cannot be shared among {devices} devices; take from 1 to {len(names)}")
    parts = np.array_split(np.random.default_rng(seed).permutation(names), devices)
    return [np.flatnonzero(np.isin(found, part)) for part in parts]


def _test_count(count: int, share: float) -> int:
    if not 0.0 < share < 1.0:
        raise UsageError(f"test_share is {share:g}; it must be above 0 and below 1")
    return min(max(1, round(count * share)), max(1, count - 1))


def _both_parts(test: Mask) -> Mask:
    if not test.any() or test.all():
        raise DataError(
            f"{len(test)} examples cannot be split into training and test data; collect more, or other groups"
        )
    return test


def _count(examples: Any) -> int:
    """Return the number of examples. UsageError for what is none."""
    if not isinstance(examples, int | np.integer):
        raise UsageError(f"{type(examples).__name__} is no number of examples; give the examples, or their number")
    return int(examples)


def _named(values: ArrayLike, what: str) -> NDArray[Any]:
    """Return the class or the group of each example. DataError where one is missing."""
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise UsageError(f"the {what} names are no list of one value for each example: {error}") from error
    # NumPy makes a text of a NaN in a list of texts.
    single = values if isinstance(values, list | tuple) else found.ravel().tolist() if found.dtype.kind in "Of" else ()
    if any(map(_is_missing, single)):
        raise DataError(f"a {what} is missing; leave its example out, or name it")
    try:
        np.unique(found)
    except TypeError as error:
        raise UsageError(
            f"the {what} names are of several kinds ({error}); make all of them texts, or numbers"
        ) from error
    return found


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))


def _independent(examples: int | Examples) -> int:
    """Return the number of examples. DataError for windows that share readings."""
    if not isinstance(examples, Examples):
        return _count(examples)
    if examples.overlap:
        raise DataError(
            "the windows overlap, so that a random split would test on readings that were trained on; use block_split or "
            "time_split, or windows with a stride of their length"
        )
    return len(examples)


def _times(times: ArrayLike | Examples) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return when each example begins and ends."""
    if not isinstance(times, Examples):
        when = np.asarray(times)
        if when.dtype.kind in "US":
            raise UsageError("the times are texts, which have another order than times; give numbers or dates")
        if when.dtype.kind in "fmM" and bool(np.isnan(when).any()):
            raise DataError("a time is missing; leave its example out")
        return when, when
    if times.times is not None:
        return times.times if times.begins is None else times.begins, times.times
    if len(np.unique(times.source)) > 1:
        raise UsageError("the examples have no times, and come from several files; name the column with time=...")
    return times.first, times.last


def _blocks(places: Positions, block: int, every: int, gap: int, name: str) -> tuple[Mask, Mask]:
    """Return masks of training and test readings."""
    offset = zlib.crc32(name.encode("utf-8", "surrogateescape")) % every

    def is_test(place: Positions) -> Mask:
        found: Mask = (place >= 0) & ((place // block + offset) % every == 0)
        return found

    test = is_test(places)
    near = test.copy()
    for distance in range(1, gap + 1):
        near |= is_test(places - distance) | is_test(places + distance)  # also of a future block
    return ~near, test
