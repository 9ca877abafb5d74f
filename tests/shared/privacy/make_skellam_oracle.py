"""Makes skellam_oracle.json: epsilon of Skellam releases by Google's dp-accounting, in the environment of make_gaussian_oracle.

    /tmp/oracle/bin/python tests/shared/privacy/make_skellam_oracle.py > tests/shared/privacy/skellam_oracle.json

`bound` is the epsilon that its Renyi accountant derives from the bound of Agarwal, Kairouz and Liu 2021, Corollary 3.6; this
file has its own implementation of the bound. `exact` is the epsilon of its accountant of privacy loss distributions, for the
true distribution of one value, in which two neighbours differ by the whole clip; a bound must not be below it.
"""

from __future__ import annotations

import itertools
import json
import sys
from importlib.metadata import version

import numpy as np
from dp_accounting.pld import privacy_loss_distribution  # type: ignore[import-not-found]
from dp_accounting.rdp import rdp_privacy_accountant  # type: ignore[import-not-found]
from scipy.stats import skellam  # type: ignore[import-untyped]

NOISE_MULTIPLIERS = (0.8, 1.7, 4.0, 10.7)
STEPS = (1, 4, 16, 500)
ROUNDS = (1, 7, 50)
DELTAS = (1e-3, 1e-5, 1e-8)
ORDERS = np.array([*range(2, 129), *(round(128 * 1.05**power) for power in range(1, 101))], float)
INTERVAL = 1e-3
MOST_EXACT = 16
"""Steps beyond which the distribution of a value has too many values for the accountant."""


def bound(noise_multiplier: float, steps: int, rounds: int) -> dict[str, float]:
    """Return, by delta, the epsilon of the bound."""
    variance, l2 = (noise_multiplier * steps) ** 2, float(steps)
    l1 = l2**2
    near = ((2 * ORDERS - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    one = ORDERS * l2**2 / (2 * variance) + np.minimum(near, 3 * l1 / (2 * variance))
    return {f"{delta:g}": rdp_privacy_accountant.compute_epsilon(ORDERS, rounds * one, delta)[0] for delta in DELTAS}


def exact(noise_multiplier: float, steps: int, rounds: int) -> dict[str, float] | None:
    """Return, by delta, the epsilon of the true distribution; None if it takes too long."""
    if steps > MOST_EXACT:
        return None
    half = (noise_multiplier * steps) ** 2 / 2
    reach = int(12 * (2 * half) ** 0.5 + 40)
    places = np.arange(-reach, reach + 1)
    logs = skellam.logpmf(places, half, half)
    lower = {int(place): log for place, log in zip(places, logs, strict=True) if np.isfinite(log)}
    upper = {place + steps: log for place, log in lower.items()}
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        lower, upper, value_discretization_interval=INTERVAL, pessimistic_estimate=False
    )
    composed = loss.self_compose(rounds)
    return {f"{delta:g}": composed.get_epsilon_for_delta(delta) for delta in DELTAS}


def main() -> None:
    """Print the table."""
    rows = [
        {"noise_multiplier": z, "steps": s, "rounds": k, "bound": bound(z, s, k), "exact": exact(z, s, k)}
        for z, s, k in itertools.product(NOISE_MULTIPLIERS, STEPS, ROUNDS)
        if k / z**2 / 2 < 60
    ]
    json.dump({"dp-accounting": version("dp-accounting"), "interval": INTERVAL, "rows": rows}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
