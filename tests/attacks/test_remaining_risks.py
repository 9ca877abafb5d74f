"""Attacks over several rounds by which a lying coordinator still learns of a device: the rows of the threat model that remain.

Nine real agents, no colluder. Each test measures the correlation of the victim's true update with the closest vector that the
adversary computes; docs/explanation/threat-model.md has the figures. A figure above its bound here is a new risk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedpatch.shared.tensors.arrays import Array
from tests.attacks.learned import Learned, correlation, trained
from tests.attacks.lying_coordinator import LyingCoordinator, LyingRound, base_of, lying_fleet
from tests.system.oracle_task import device_data

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]

ALL = tuple(f"pi-{place}" for place in range(9))
VICTIM, OTHERS = ALL[0], ALL[1:]
BATCH_OF_DIGITS = 256
"""More than the examples of a ninth of the data set: a round has one step."""


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingCoordinator]:
    with lying_fleet(tmp_path_factory.mktemp("risks"), ALL) as liar:
        yield liar


def played(liar: LyingCoordinator, salt: str, devices: Iterable[str] = ALL, **plan: object) -> LyingRound:
    return liar.round(base_of(liar.prepared, salt), devices, plan=plan).play().end()


def sum_of(one: LyingRound) -> Array:
    """Return the trained values of the only sum that opens."""
    [(_, total)] = Learned(one).sums()
    return trained(one, total)


def of_victim(one: LyingRound) -> Array:
    return trained(one, one.truth[VICTIM])


def test_difference_of_two_sums_from_almost_the_same_base_is_about_the_update_of_the_dropped_device(liar):
    """With one batch for all examples; with four batches their secret order adds noise of every device."""
    found = {}
    for batches in (1, 4):
        size = 16 // batches
        whole = played(liar, f"whole {batches}", batch_size=size)
        without = played(liar, f"without {batches}", OTHERS, batch_size=size)
        found[batches] = correlation(sum_of(whole) - sum_of(without), of_victim(whole))
    assert 0.8 < found[1] < 0.97
    assert found[4] < 0.5


def test_sum_is_close_to_one_device_only_as_far_as_devices_are_alike(liar):
    """Of nine devices, and of the seven that must remain after two chosen drop-outs."""
    whole = played(liar, "sum of nine")
    seven = liar.round(base_of(liar.prepared, "sum of seven"), ALL[:7]).play().end()
    found = [correlation(sum_of(one), of_victim(one)) for one in (whole, seven)]
    assert max(found) < 0.5


def steering(liar: LyingCoordinator, salt: str, bias: float) -> dict[str, Array]:
    """Return a model of digits whose second layer is positive: where all shifts are low, nothing behind it has gradients."""
    base = base_of(liar.prepared, salt)
    shown = np.zeros_like(base["fc3.weight"])
    shown[0] = 1.0
    changed = {"fc2.weight": np.full_like(base["fc2.weight"], 0.1), "fc2.bias": np.full_like(base["fc2.bias"], bias)}
    return {**base, **changed, "fc3.weight": shown}


@pytest.mark.parametrize(
    ("bad_rounds", "least", "most"), [(0, 0.5, 0.7), (1, 0.5, 0.8), (2, 0.55, 0.8), (4, 0.85, 1.0), (40, 0.999, 1.0)]
)
def test_steered_patches_show_the_update_of_one_device_after_several_bad_rounds_only(
    tmp_path_factory, bad_rounds, least, most
):
    """Steps at rate 100 for all but the victim, then sums of all, from models in which low shifts leave no gradients."""
    with lying_fleet(
        tmp_path_factory.mktemp("steered"), ALL, task="digits", data="shard:{}/9", batch_size=BATCH_OF_DIGITS
    ) as liar:
        for number in range(bad_rounds):
            liar.round(steering(liar, f"bad {number}", 9.0), OTHERS, plan={"learning_rate": 100.0}).play().end()
        found = []
        for bias in (0.5, 2.0, 4.0):
            after = liar.round(steering(liar, f"after {bias}", bias), plan={"learning_rate": 1e-3}).play().end()
            found.append(correlation(sum_of(after), of_victim(after)))
    assert least <= max(found) < most


@pytest.fixture
def untrained(tmp_path: Path) -> Iterator[LyingCoordinator]:
    """Devices without earlier rounds: private patches from these move the correlation by 0.03."""
    with lying_fleet(tmp_path, ALL) as liar:
        yield liar


def test_crafted_weights_show_examples_of_the_group_and_not_whose_they_are(untrained):
    """Saturated units learn from the few examples near their bend; each row of a sum is then close to one example."""
    base = base_of(untrained.prepared, "crafted")
    first = min(name for name in base if base[name].ndim == 2)
    found = {}
    for scale in (1.0, 30.0):
        one = untrained.round({**base, first: base[first] * np.float32(scale)}).play().end()
        [(_, total)] = Learned(one).sums()
        rows = rows_of(one, total, first)
        found[scale] = max(
            correlation(row, example)
            for row in rows
            for place in range(len(ALL))
            for example in device_data(f"n=16,test=20,seed={place}").train_x.astype(np.float64)
        )
    assert found[1.0] < 0.87 < found[30.0]


def rows_of(one: LyingRound, total: Array, name: str) -> Array:
    """Return the rows of a tensor in a sum."""
    layout, start = one.layout, 0
    for spec, count in zip(layout.specs, layout.counts, strict=True):
        if spec.name == name:
            return (
                total[start : start + count].view(f"<i{layout.dtype.itemsize}").astype(np.float64).reshape(spec.shape)
            )
        start += count
    raise AssertionError(name)
