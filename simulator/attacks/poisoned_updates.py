"""The updates that bad devices send. All of them pass the checks of an update: they are finite and fit the schema.

The attackers get the mean and the spread of the other updates of the round; a real attacker does not have them.
This module does not depend on the simulator: the tests of attacks use its functions with real devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.shared.tensors.arrays import Array, Tensors

STRENGTHS: dict[str, float | None] = {
    "sign": 4.0,
    "labels": None,
    "alie": 1.5,
    "ipm": 2.0,
    "noise": 20.0,
    "backdoor": None,
    "copy": 1.0,
}
"""Attacks and their default strength; None where an attack has none, or chooses it in each round."""

_WITHOUT_STRENGTH = ("labels",)
_GREATEST = 1e6  # a stronger attack would overflow float32, and the coordinator refuses such an update


@dataclass(frozen=True)
class Attack:
    """An attack of all bad devices together.

    Attributes:
        kind: One of STRENGTHS:

            - `sign`: the device's own step, reversed and multiplied by the strength.
            - `labels`: training on labels in reverse order.
            - `alie`: the mean step minus strength times standard deviation, value by value: a step among those of the
              others. Baruch, Baruch and Goldberg 2019, "A Little Is Enough".
            - `ipm`: the mean step, reversed and multiplied by the strength. Xie, Koyejo and Gupta 2020, "Fall of Empires:
              Breaking Byzantine-tolerant SGD by Inner Product Manipulation".
            - `noise`: the device's own step plus normal noise; the strength is the ratio of noise to step, root mean squares.
            - `backdoor`: training on triggered examples, the step multiplied by the strength; None: by the number of devices
              per bad device. Bagdasaryan et al. 2020, "How To Backdoor Federated Learning".
            - `copy`: all bad devices send the step of the first of them (sybils), multiplied by the strength.
        strength: See `kind`.
    """

    kind: str
    strength: float | None = None

    def __str__(self) -> str:
        """Return the text that `parse_attack` reads."""
        return self.kind if self.strength is None else f"{self.kind}:{self.strength:g}"


def parse_attack(text: str) -> Attack:
    """Parse KIND or KIND:STRENGTH; raise UsageError for any other text."""
    kind, colon, number = text.partition(":")
    if kind not in STRENGTHS:
        raise unknown_name("attack", kind, list(STRENGTHS))
    if not colon:
        return Attack(kind, STRENGTHS[kind])
    if kind in _WITHOUT_STRENGTH:
        raise UsageError(f"the attack {kind} has no strength; write {kind}")
    try:
        strength = float(number)
    except ValueError:
        strength = math.nan
    if not 0 < strength <= _GREATEST:
        raise UsageError(
            f"{text!r} is no attack; write {kind}, or {kind}:X with a number above 0 and at most {_GREATEST:.0e}"
        )
    return Attack(kind, strength)


class KnownSteps:
    """Mean and standard deviation, value by value, of the steps that the attackers know.

    Args:
        base: The global model that the updates were trained on.
        names: The trained tensors.

    Example:
        >>> known = KnownSteps({"w": np.zeros(1)}, ["w"])
        >>> for value in (1.0, 3.0):
        ...     known.add({"w": np.array([value])})
        >>> known.mean()["w"], known.deviation()["w"]
        (array([2.]), array([1.]))
    """

    def __init__(self, base: Tensors, names: Iterable[str]) -> None:
        self.base, self.names = base, list(names)
        self._count = 0
        self._sums = {name: np.zeros(base[name].shape) for name in self.names}
        self._squares = {name: np.zeros(base[name].shape) for name in self.names}

    def add(self, tensors: Tensors) -> None:
        """Add an update."""
        self._count += 1
        for name, step in self.step_of(tensors).items():
            self._sums[name] += step
            self._squares[name] += step * step

    def step_of(self, tensors: Tensors) -> dict[str, Array]:
        """Return the step of an update, in float64."""
        return {name: np.subtract(tensors[name], self.base[name], dtype=np.float64) for name in self.names}

    def mean(self) -> dict[str, Array]:
        """Return the mean; zeros if no update is known."""
        return {name: total / max(1, self._count) for name, total in self._sums.items()}

    def deviation(self) -> dict[str, Array]:
        """Return the standard deviation; zeros if no update is known."""
        count, means = max(1, self._count), self.mean()
        return {
            name: np.sqrt(np.maximum(squares / count - means[name] ** 2, 0.0))
            for name, squares in self._squares.items()
        }


def poison(
    attack: Attack, own: Tensors, known: KnownSteps, rng: np.random.Generator, *, boost: float = 1.0
) -> dict[str, Array]:
    """Return the update that a bad device sends.

    Args:
        attack: The attack. `labels` changes only the training data, so the device sends its own update.
        own: The update that the device trained; with `copy`, the update of the first bad device.
        known: The steps of the other devices.
        rng: Source of the noise.
        boost: The strength of a `backdoor` that has none of its own.

    Returns:
        All tensors of `own`; only trained tensors differ. Moments and statistics are those of the training.
    """
    strength = boost if attack.strength is None else attack.strength
    if attack.kind == "alie":
        deviation = known.deviation()
        step = {name: mean - strength * deviation[name] for name, mean in known.mean().items()}
    elif attack.kind == "ipm":
        step = {name: -strength * mean for name, mean in known.mean().items()}
    elif attack.kind == "noise":
        step = _noisy(known.step_of(own), strength, rng, known.names)
    elif attack.kind == "labels":
        return dict(own)
    else:
        factor = -strength if attack.kind == "sign" else strength
        step = {name: factor * values for name, values in known.step_of(own).items()}
    return dict(own) | {name: (known.base[name] + values).astype(own[name].dtype) for name, values in step.items()}


def _noisy(step: dict[str, Array], strength: float, rng: np.random.Generator, names: Sequence[str]) -> dict[str, Array]:
    size = sum(values.size for values in step.values())
    scale = strength * math.sqrt(sum(float(np.sum(values * values)) for values in step.values()) / max(1, size))
    return {name: step[name] + scale * rng.standard_normal(step[name].shape) for name in names}
