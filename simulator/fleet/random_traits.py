"""Random traits of a device, and random events of a device in a round, drawn from the settings of the study.

Each draw depends only on the seed, the device and the round. So two policies are compared on the same fleet with the same
random events, and differ only by the policy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from fedpatch.simulator.fleet.settings import FleetTerms


@dataclass(frozen=True)
class DeviceProfile:
    """Constant traits of a device: its training time in an average round, its link, and whether its task is outdated."""

    train_s: float
    down_bits_s: float
    up_bits_s: float
    outdated: bool


@dataclass(frozen=True)
class DeviceOutcome:
    """A device's part in one round.

    `off_training` and `off_upload` are the fractions of its training and of its upload after which the device disconnects
    for `away_s`; None if it does not.
    """

    willing: bool
    train_s: float
    off_training: float | None
    off_upload: float | None
    away_s: float


def draw_traits(terms: FleetTerms, device: int) -> DeviceProfile:
    """Draw the traits of one device of the fleet, by its number."""
    rng = random.Random(f"{terms.seed}:{device}")
    train_s = _around(rng, terms.train_s, terms.train_spread)
    down_mbit_s = _around(rng, terms.down_mbit_s, terms.link_spread)
    up_mbit_s = _around(rng, terms.up_mbit_s, terms.link_spread)
    slow, outdated = rng.random() < terms.slow_share, rng.random() < terms.outdated
    if terms.speed_range != 1.0:
        place = _speed_ranks(terms.seed, terms.devices)[device - 1] / max(1, terms.devices - 1)
        train_s *= terms.speed_range**place
    return DeviceProfile(train_s * (terms.slow_factor if slow else 1.0), down_mbit_s * 1e6, up_mbit_s * 1e6, outdated)


def draw_outcome(terms: FleetTerms, device: int, train_s: float, round_number: int) -> DeviceOutcome:
    """Draw the outcome of one device in one round; `train_s` is its training time in an average round."""
    rng = random.Random(f"{terms.seed}:{device}:{round_number}")
    # Unused values are drawn too: a changed probability must not shift the other draws.
    trains_s = _around(rng, train_s, terms.round_spread)
    away_s = _around(rng, terms.away_s, terms.away_spread)
    unwilling, off_training, off_upload = (rng.random() for _ in range(3))
    at_training, at_upload = rng.random(), rng.random()
    return DeviceOutcome(
        willing=unwilling >= terms.unwilling,
        train_s=trains_s,
        off_training=at_training if off_training < terms.dropout_training else None,
        off_upload=at_upload if off_upload < terms.dropout_upload else None,
        away_s=away_s,
    )


@lru_cache(maxsize=4)
def _speed_ranks(seed: int, devices: int) -> tuple[int, ...]:
    """Return the rank of each device among the fleet's training speeds; cached, so shuffled once per fleet."""
    ranks = list(range(devices))
    random.Random(f"{seed}:speeds").shuffle(ranks)
    return tuple(ranks)


def _around(rng: random.Random, median: float, spread: float) -> float:
    """Draw from a log-normal distribution."""
    return float(median * spread ** rng.gauss(0.0, 1.0))
