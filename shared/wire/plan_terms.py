"""Terms of a training plan beyond a strategy's own training: what they hold, and how settings make them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.field_types import Word

PLAN_TERMS = ("prox", "phases")
"""Fields of a TrainPlan that travel only where they are set. Each name is a feature of devices and a setting of runs too."""
PARTS = ("all", "private", "public")
MAX_PHASES = 4

EpochCount = Annotated[int, Meta(ge=0, le=100_000)]
StepCount = Annotated[int, Meta(ge=0, le=100_000_000)]


@dataclass(frozen=True)
class Phase:
    """A part of a round in which only some values learn.

    Attributes:
        train: One of PARTS: the values that learn.
        epochs: Passes over the training data, where `steps` is 0.
        steps: Minibatches; 0: `epochs` decides.
    """

    train: Word
    epochs: EpochCount = 1
    steps: StepCount = 0

    def steps_for(self, num_examples: int, batch_size: int) -> int:
        """Return the minibatches: `steps`, or else max(1, round(num_examples / batch_size)) * `epochs`."""
        return self.steps or max(1, round(num_examples / batch_size)) * self.epochs


Phases = Annotated[tuple[Phase, ...], Meta(max_length=MAX_PHASES)]


def parse_phases(text: str) -> tuple[Phase, ...]:
    """Parse `PART[:N],...`, with N epochs or `N steps` written as Ns; raise UsageError for any other text.

    Example:
        >>> parse_phases("private:2,public:30s")
        (Phase(train='private', epochs=2, steps=0), Phase(train='public', epochs=0, steps=30))
    """
    found = [re.fullmatch(r"(all|private|public)(?::([1-9]\d{0,4})(s?))?", one.strip()) for one in text.split(",")]
    phases = [
        Phase(one[1], *((0, int(one[2])) if one[3] else (int(one[2] or 1), 0))) for one in found if one is not None
    ]
    if len(phases) < len(found) or len(phases) > MAX_PHASES:
        raise UsageError(
            f"{text!r} is not 1 to {MAX_PHASES} phases; write all, private or public, each with its epochs or steps, such as "
            "private:5,public:1 or private:20s,public:20s"
        )
    return tuple(phases)


def make_terms(prox: float, phases: str = "") -> dict[str, Any]:
    """Return the terms of settings as fields of a TrainPlan; a setting at its default gives none.

    Args:
        prox: mu of FedProx; 0 for none.
        phases: The phases, for `parse_phases`; "" for none.

    Raises:
        UsageError: A text cannot be parsed.
    """
    return ({"prox": float(prox)} if prox else {}) | ({"phases": parse_phases(phases)} if phases else {})


def require_learning(parts: Iterable[Phase], trained: Collection[str], private: Collection[str]) -> None:
    """Raise UsageError if a phase has nothing to train.

    Args:
        parts: The phases.
        trained: Names of the values that can learn.
        private: Names of the values that do not travel.
    """
    held = {"all": True, "private": any(one in private for one in trained)}
    held["public"] = any(one not in private for one in trained)
    for one in parts:
        if not held[one.train]:
            raise UsageError(
                f"the phase {one.train} has nothing to train; leave it out of phases, or set private to head"
            )


def term_problems(*, phases: str, private: str, epochs: int, steps: int) -> Iterator[tuple[str, str, str]]:
    """Yield terms that do not fit the other settings: the setting, the reason with the remedy, and the other setting.

    Args:
        phases: The phases; not checked where they cannot be parsed.
        private: The patch policy, as text.
        epochs: The setting `epochs`.
        steps: The setting `steps`.
    """
    try:
        parts = {one.train for one in make_terms(0.0, phases).get("phases", ())}
    except UsageError:
        return
    if parts and (steps or epochs != 1):
        yield "phases", f"{phases} has epochs and steps of its own; leave epochs and steps out", "steps"
    if "private" in parts and private == "none":
        yield (
            "phases",
            "private has nothing to train with private = none; set private to head or names:GLOB,...",
            "private",
        )
    if parts == {"private"}:
        yield "phases", f"{phases} trains nothing that travels; add public or all", "private"
