"""Terms of a training plan beyond a strategy's own training: what they hold, and how settings make them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.field_types import Word

if TYPE_CHECKING:
    from fedpatch.shared.wire.messages import TrainPlan

PLAN_TERMS = ("prox", "phases", "personal", "finish")
"""Fields of a TrainPlan that travel only where they are set. Each name is a feature of devices and a setting of runs too."""
CONTROL = "control"
"""The control variate of SCAFFOLD, which travels like a moment of SGD; in a plan's `moments`, and a feature of devices."""
PARTS = ("all", "private", "public")
MAX_PHASES = 4
DITTO, PFEDME = COPIES = ("ditto", "pfedme")

Strength = Annotated[float, Meta(gt=0.0, le=1e6)]

EpochCount = Annotated[int, Meta(ge=0, le=100_000)]
StepCount = Annotated[int, Meta(ge=0, le=100_000_000)]


@dataclass(frozen=True)
class TrainPhase:
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


@dataclass(frozen=True)
class PersonalCopy:
    """A second copy of the model that never leaves the device and is the device's personal model.

    Attributes:
        kind: One of COPIES.
        strength: lambda: of the pull of the copy to the model.
    """

    kind: Word
    strength: Strength


Phases = Annotated[tuple[TrainPhase, ...], Meta(max_length=MAX_PHASES)]


def parse_phases(text: str) -> tuple[TrainPhase, ...]:
    """Parse `PART[:N],...`, with N epochs or `N steps` written as Ns; raise UsageError for any other text.

    Example:
        >>> parse_phases("private:2,public:30s")
        (TrainPhase(train='private', epochs=2, steps=0), TrainPhase(train='public', epochs=0, steps=30))
    """
    found = [re.fullmatch(r"(all|private|public)(?::([1-9]\d{0,4})(s?))?", one.strip()) for one in text.split(",")]
    phases = [
        TrainPhase(one[1], *((0, int(one[2])) if one[3] else (int(one[2] or 1), 0))) for one in found if one is not None
    ]
    if len(phases) < len(found) or len(phases) > MAX_PHASES:
        raise UsageError(
            f"{text!r} is not 1 to {MAX_PHASES} phases; write all, private or public, each with its epochs or steps, such as "
            "private:5,public:1 or private:20s,public:20s"
        )
    return tuple(phases)


def parse_personal(text: str) -> PersonalCopy:
    """Parse `KIND:STRENGTH`; raise UsageError for any other text."""
    kind, _, number = text.partition(":")
    with suppress(ValueError):
        if kind in COPIES and 0 < (strength := float(number)) <= 1e6:
            return PersonalCopy(kind, strength)
    raise UsageError(
        f"{text!r} is no personal copy; write {' or '.join(f'{one}:LAMBDA' for one in COPIES)}, such as ditto:0.1"
    )


def make_terms(prox: float, phases: str = "", personal: str = "", finish: str = "") -> dict[str, Any]:
    """Return the terms of settings as fields of a TrainPlan; a setting at its default gives none.

    Args:
        prox: mu of FedProx; 0 for none.
        phases: The phases, for `parse_phases`; "" for none.
        personal: The personal copy, for `parse_personal`; "" for none.
        finish: The phases of the finishing, for `parse_phases`; "" for none.

    Raises:
        UsageError: A text cannot be parsed.
    """
    terms: dict[str, Any] = {"prox": float(prox)} if prox else {}
    terms |= {"phases": parse_phases(phases)} if phases else {}
    terms |= {"personal": parse_personal(personal)} if personal else {}
    return terms | ({"finish": parse_phases(finish)} if finish else {})


def require_fitting(plan: TrainPlan, trained: Collection[str], private: Collection[str]) -> None:
    """Raise UsageError if a phase has nothing to train, or the optimizer does not fit the personal copy.

    Args:
        trained: Names of the values that can learn.
        private: Names of the values that do not travel.
    """
    held = {"all": True, "private": any(one in private for one in trained)}
    held["public"] = any(one not in private for one in trained)
    for name, parts in (("phases", plan.parts), ("finish", plan.finish or ())):
        if lacking := [one.train for one in parts if not held[one.train]]:
            raise UsageError(
                f"the phase {lacking[0]} has nothing to train; leave it out of {name}, or set private to head"
            )
    if plan.has_controls and (unfit := [name for name in ("prox", "phases", "personal") if name in plan.terms]):
        raise UsageError(
            f"{unfit[0]}: control variates correct steps of plain SGD; leave {unfit[0]} out, or use strategy fedavg"
        )
    if not plan.personal or plan.personal.kind != PFEDME:
        return
    rate, strength = plan.learning_rate, plan.personal.strength
    if plan.client_optimizer != "sgd":
        raise UsageError(
            f"personal: {PFEDME} is defined for SGD on the devices; use strategy fedavg or fedadam, or {DITTO}"
        )
    if rate * strength > 1:
        raise UsageError(
            f"personal: LAMBDA = {strength:g} times the learning rate {rate:g} is above 1, so the model would step beyond the "
            "copy; make one of them smaller"
        )


def term_problems(
    *, prox: float, phases: str, personal: str, finish: str, private: str, epochs: int, steps: int
) -> Iterator[tuple[str, str, str]]:
    """Yield terms that do not fit the other settings: the setting, the reason with the remedy, and the other setting.

    Args:
        prox: mu of FedProx.
        phases: The phases; not checked where they cannot be parsed.
        personal: The personal copy.
        finish: The phases of the finishing; not checked where they cannot be parsed.
        private: The patch policy, as text.
    """
    try:
        terms = make_terms(0.0, phases, "", finish)
    except UsageError:
        return
    parts, finishing = ({one.train for one in terms.get(name, ())} for name in ("phases", "finish"))
    if parts and (steps or epochs != 1):
        yield "phases", f"{phases} has epochs and steps of its own; leave epochs and steps out", "steps"
    if parts and personal:
        yield "personal", f"{personal} trains a copy as a whole; leave phases or personal out", "phases"
    if finishing and personal:
        yield "finish", f"{finish} trains a copy, and {personal} another one; leave finish or personal out", "personal"
    if prox and personal.startswith(PFEDME):
        yield "prox", f"{PFEDME} has a pull of its own, LAMBDA; leave prox out", "personal"
    if private == "none":
        words = "private has nothing to train with private = none; set private to head or names:GLOB,..."
        named = (("phases", parts, words), ("finish", finishing, f"{words}, or finish to all:N"))
        yield from ((name, why, "private") for name, phased, why in named if "private" in phased)
    if parts == {"private"}:
        yield "phases", f"{phases} trains nothing that travels; add public or all", "private"
