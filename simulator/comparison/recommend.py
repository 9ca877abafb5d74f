"""Table of methods beside learning alone on one split of the data, with a recommendation.

Each client is measured at the end, in the same way in every arm: before local training, on its own test data. The arms
share task, split, initial model, selection and batches; learning alone is the same training without federation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpatch.shared.app.formatting import accuracy
from fedpatch.shared.tasks.gains import gain_figures, gain_of
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.simulator.comparison import methods

ALONE = methods.ALONE.name

_MOST_PRIVATE_FIRST = ("all", "affine", "stats", "none")
_NOISE = 2.0
"""Two arms count as equal if their mean difference over clients is within so many standard errors."""

_ROUNDING = 1e-9
"""Relative difference of two means of the same values."""

Clients = Mapping[tuple[int, int], float]
"""User accuracies by (seed, client)."""


@dataclass(frozen=True)
class Arm:
    """One method, or ALONE, over all seeds.

    Attributes:
        name: Name of the method.
        accuracies: User accuracies after `rounds`.
        rounds: Number of rounds.
        num_bytes: Bytes of all clients, both ways.
        bytes_up: Bytes of the updates.
        curves: User accuracy after each round, by seed.
        learning_rate: Learning rate of the clients; None: unknown.
        options: The method as options of `fedpatch run`; "": a policy of the same name.
    """

    name: str
    accuracies: Clients
    rounds: int
    num_bytes: int
    bytes_up: int = 0
    curves: Mapping[int, Sequence[float]] = field(default_factory=dict)
    learning_rate: float | None = None
    options: str = ""


@dataclass(frozen=True)
class ComparisonRow:
    """An arm beside learning alone.

    Attributes:
        name: Name of the method.
        mean: Mean user accuracy.
        spread: Standard deviation of the mean user accuracy over seeds; None for one seed.
        p10: Bound of the worst tenth of the clients: none of them has a better user accuracy.
        gains: Figures of its clients' gains (`gain_figures`); empty for ALONE itself.
        rounds: Rounds of each simulation.
        rounds_to_target: Mean over seeds of the rounds to the target; None: a seed did not reach it.
        num_bytes: Bytes of all clients and seeds, both ways.
        bytes_up: Bytes of the updates.
        learning_rate: See Arm.
    """

    name: str
    mean: float
    spread: float | None
    p10: float
    gains: Mapping[str, float]
    rounds: int
    rounds_to_target: float | None
    num_bytes: int
    bytes_up: int
    learning_rate: float | None

    @property
    def gaining(self) -> float | None:
        """Share of clients that are better than with learning alone; None for ALONE itself."""
        return self.gains.get("gaining")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "policy": self.name,
            "user_accuracy": self.mean,
            "p10": self.p10,
            "better_than_independent": self.gaining,
            **{name: self.gains.get(name) for name in ("gain", "gain_median", "gain_p10")},
            "rounds": self.rounds,
            "bytes": self.num_bytes,
            "spread": self.spread,
            "rounds_to_target": self.rounds_to_target,
            "bytes_up": self.bytes_up,
            "bytes_down": self.num_bytes - self.bytes_up,
            "learning_rate": self.learning_rate,
        }


def rows(arms: Sequence[Arm], metric: MetricTerms, target_ua: float | None = None) -> list[ComparisonRow]:
    """Return the table in the order of `arms`, which include ALONE.

    Args:
        target_ua: Target of `rounds_to_target`; None: the last user accuracy of learning alone, seed by seed.
    """
    alone = next(arm for arm in arms if arm.name == ALONE)
    reference = by_seed(alone)
    # The means of a curve come from other sums, which differ in the last bits.
    slack = _ROUNDING if metric.goal == "min" else -_ROUNDING
    own = {seed: value + slack * abs(value) for seed, value in reference.items()}
    targets = own if target_ua is None else dict.fromkeys(own, target_ua)
    return [_row(arm, alone, metric, targets) for arm in arms]


def by_seed(arm: Arm) -> dict[int, float]:
    """Return the mean user accuracy of each seed."""
    found: dict[int, list[float]] = {}
    for (seed, _), value in arm.accuracies.items():
        found.setdefault(seed, []).append(value)
    return {seed: _mean(values) for seed, values in found.items()}


def _row(arm: Arm, alone: Arm, metric: MetricTerms, targets: Mapping[int, float]) -> ComparisonRow:
    values, means = list(arm.accuracies.values()), list(by_seed(arm).values())
    return ComparisonRow(
        arm.name,
        _mean(values),
        statistics.stdev(means) if len(means) > 1 else None,
        metric.p10(values),
        {} if arm.name == ALONE else gain_figures(_gains(arm, alone, metric)),
        arm.rounds,
        _rounds_to(arm, targets, metric),
        arm.num_bytes,
        arm.bytes_up,
        arm.learning_rate,
    )


def _rounds_to(arm: Arm, targets: Mapping[int, float], metric: MetricTerms) -> float | None:
    found = [
        next((place for place, value in enumerate(curve) if metric.reached(value, targets[seed])), None)
        for seed, curve in arm.curves.items()
    ]
    known = [one for one in found if one is not None]
    return _mean(known) if known and len(known) == len(found) else None


def recommend(arms: Sequence[Arm], metric: MetricTerms) -> tuple[str, str]:
    """Return the recommended arm, with the reason in one sentence.

    If no method is better than learning alone beyond the noise, this is learning alone. Else it is one of the better methods
    that equal the best within the noise: the policy that keeps most private, or else the method with the fewest bytes.
    """
    alone = next(arm for arm in arms if arm.name == ALONE)
    policies = sorted((arm for arm in arms if arm is not alone), key=_preference)
    # Each policy is compared with learning alone: equality within the noise is not transitive.
    if not policies:
        return ALONE, "no method is left to compare with learning alone"
    better = [arm for arm in policies if not _as_good(alone, arm, metric)]
    best = max(better or policies, key=lambda arm: _mean(_gains(arm, alone, metric)))
    label = metric.label
    if not better:
        return ALONE, (
            f"no method is better than learning alone beyond the noise ({label} {accuracy(_value(alone))} alone, "
            f"{accuracy(_value(best))} with the best, {best.name}), so federation does not pay with these data and rounds"
        )
    chosen = next(arm for arm in better if _as_good(arm, best, metric))
    gains = _gains(chosen, alone, metric)
    found = gain_figures(gains)
    share, gain = found["gaining"], found["gain"]
    ties = [arm.name for arm in better if arm is not chosen and _as_good(arm, chosen, metric)]
    equal = f"; {' and '.join(ties)} within the noise of it" if ties else ""
    options = chosen.options or f"--private {chosen.name}"
    return chosen.name, (
        f"take {options}: {label} {accuracy(_value(chosen))}, {gain:+.3g} over learning alone, and {share:.0%} "
        f"of the clients gain{equal}"
    )


def _preference(arm: Arm) -> tuple[int, int]:
    order = _MOST_PRIVATE_FIRST
    return (order.index(arm.name) if arm.name in order else len(order)), arm.num_bytes


def _as_good(arm: Arm, other: Arm, metric: MetricTerms) -> bool:
    """Return whether `arm` is no worse than `other` beyond the noise, client by client."""
    gains = _gains(arm, other, metric)
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return _mean(gains) >= -_NOISE * error


def _gains(arm: Arm, other: Arm, metric: MetricTerms) -> list[float]:
    return [gain_of(arm.accuracies[one], other.accuracies[one], metric) for one in sorted(arm.accuracies)]


def _value(arm: Arm) -> float:
    return _mean(list(arm.accuracies.values()))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
