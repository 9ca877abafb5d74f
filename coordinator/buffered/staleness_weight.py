"""The weight of a late update: less for each round that its base model is old (FedBuff: Nguyen et al. 2022, section 3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CarryPolicy:
    """The conditions of buffered rounds.

    Attributes:
        max_staleness: Versions that the model may have advanced since an update's base.
        power: Exponent p of the weight (1 + staleness)^-p.
        concurrency: Devices that work at once; None: as many as a round is meant for.
    """

    max_staleness: int
    power: float
    concurrency: int | None = None

    def factor(self, staleness: int) -> float:
        """Return the factor of an update's weight (FedBuff, section 3; p = 0.5 there).

        Example:
            >>> CarryPolicy(4, 0.5).factor(3)
            0.5
        """
        return float((1 + staleness) ** -self.power)
