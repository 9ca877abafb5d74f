"""Makes gaussian_oracle.json: epsilon and delta of Gaussian releases by Google's dp-accounting.

dp-accounting pins attrs < 24, so it needs an environment of its own:

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install dp-accounting==0.6.0
    /tmp/oracle/bin/python tests/shared/privacy/make_gaussian_oracle.py > tests/shared/privacy/gaussian_oracle.json

`epsilon` is from its accountant of privacy loss distributions, which composes the rounds numerically; `delta` is the exact
delta of one Gaussian mechanism with the standard deviation noise_multiplier / sqrt(rounds).
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from importlib.metadata import version

import dp_accounting  # type: ignore[import-not-found]
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant  # type: ignore[import-not-found]
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss  # type: ignore[import-not-found]

NOISE_MULTIPLIERS = (0.8, 1.588, 3.0, 9.87, 30.0)
ROUNDS = (1, 7, 50, 200)
DELTAS = (1e-3, 1e-5, 1e-8)
EPSILONS = (0.1, 1.0, 3.0, 8.0)
INTERVAL = 1e-4
MOST_EPSILON = 60.0


def row(noise_multiplier: float, rounds: int) -> dict[str, object]:
    """Return the figures of `rounds` releases with the same noise."""
    accountant = PLDAccountant(value_discretization_interval=INTERVAL)
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), rounds)
    exact = GaussianPrivacyLoss(noise_multiplier / math.sqrt(rounds))
    return {
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "epsilon": {f"{delta:g}": accountant.get_epsilon(delta) for delta in DELTAS},
        "delta": {f"{epsilon:g}": exact.get_delta_for_epsilon(epsilon) for epsilon in EPSILONS},
    }


def main() -> None:
    """Print the table. Losses beyond MOST_EPSILON are left out: their distributions take gigabytes."""
    grid = itertools.product(NOISE_MULTIPLIERS, ROUNDS)
    rows = [row(*one) for one in grid if (one[1] / one[0] ** 2) / 2 < MOST_EPSILON]
    json.dump({"dp-accounting": version("dp-accounting"), "interval": INTERVAL, "rows": rows}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
