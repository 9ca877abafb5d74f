"""Comparison of the patch policies and of learning alone on one split of the data, with a recommendation.

Each client is measured at the end, in every arm alike: before local training, on its own test data. The arms share task,
split, initial model, selection, batches and plan; learning alone is the same training with nothing federated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpatch.shared.app.formatting import accuracy
from fedpatch.shared.tasks.gains import gain_figures, gain_of
from fedpatch.shared.tasks.metric_spec import MetricTerms

ALONE = "independent"
POLICIES = ("none", "stats", "affine", "all")
_MOST_PRIVATE_FIRST = ("all", "affine", "stats", "none")
_NOISE = 2.0
"""Standard errors of the mean difference between clients within which two arms count as equal."""

Clients = Mapping[tuple[int, int], float]
"""User accuracies by (seed, client)."""


@dataclass(frozen=True)
class Arm:
    """One policy, or ALONE: user accuracies after `rounds`, and bytes of all clients, both ways, over all seeds."""

    name: str
    accuracies: Clients
    rounds: int
    num_bytes: int


@dataclass(frozen=True)
class ComparisonRow:
    """An arm beside learning alone; `gains` are the figures of its clients' gains (`gain_figures`), empty for ALONE itself."""

    name: str
    mean: float
    p10: float
    gains: Mapping[str, float]
    rounds: int
    num_bytes: int

    @property
    def gaining(self) -> float | None:
        """The share of clients that are better than alone; None for ALONE itself."""
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
        }


def rows(arms: Sequence[Arm], metric: MetricTerms) -> list[ComparisonRow]:
    """The table, in the order of `arms`, one of which is ALONE."""
    alone = next(arm for arm in arms if arm.name == ALONE)
    return [_row(arm, alone, metric) for arm in arms]


def _row(arm: Arm, alone: Arm, metric: MetricTerms) -> ComparisonRow:
    values = list(arm.accuracies.values())
    return ComparisonRow(
        arm.name,
        statistics.fmean(values),
        float(np.quantile(values, 0.1 if metric.goal == "max" else 0.9)),
        {} if arm.name == ALONE else gain_figures(_gains(arm, alone, metric)),
        arm.rounds,
        arm.num_bytes,
    )


def recommend(arms: Sequence[Arm], metric: MetricTerms) -> tuple[str, str]:
    """Which arm to take, and why in one sentence.

    It is learning alone where no policy beats it beyond the noise. Else, of the policies that do, it is the one that keeps most
    private among those as good as the best within the noise.
    """
    alone = next(arm for arm in arms if arm.name == ALONE)
    policies = [arm for name in _MOST_PRIVATE_FIRST for arm in arms if arm.name == name]
    # Asked of each policy: to be as good within the noise is not transitive.
    better = [arm for arm in policies if not _as_good(alone, arm, metric)]
    best = max(better or policies, key=lambda arm: _mean(_gains(arm, alone, metric)))
    label = metric.label
    if not better:
        return ALONE, (
            f"no policy is better than learning alone beyond the noise ({label} {accuracy(_value(alone))} alone, "
            f"{accuracy(_value(best))} with the best, {best.name}), so federation does not pay with these data and rounds"
        )
    chosen = next(arm for arm in better if _as_good(arm, best, metric))
    gains = _gains(chosen, alone, metric)
    found = gain_figures(gains)
    gain, share = found["gain"], found["gaining"]
    ties = [arm.name for arm in better if arm is not chosen and _as_good(arm, chosen, metric)]
    equal = f"; {' and '.join(ties)} within the noise of it" if ties else ""
    return chosen.name, (
        f"take --private {chosen.name}: {label} {accuracy(_value(chosen))}, {gain:+.3g} over learning alone, and {share:.0%} "
        f"of the clients gain{equal}"
    )


def _as_good(arm: Arm, other: Arm, metric: MetricTerms) -> bool:
    """Whether `arm` is no worse than `other` beyond the noise, client by client."""
    gains = _gains(arm, other, metric)
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return _mean(gains) >= -_NOISE * error


def _gains(arm: Arm, other: Arm, metric: MetricTerms) -> list[float]:
    return [gain_of(arm.accuracies[one], other.accuracies[one], metric) for one in sorted(arm.accuracies)]


def _value(arm: Arm) -> float:
    return _mean(list(arm.accuracies.values()))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
