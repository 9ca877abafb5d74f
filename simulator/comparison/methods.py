"""The methods of `fedpatch simulate compare`: each is a patch policy, terms of the plan, and sometimes a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.simulator.spec.study import EVERYTHING

POLICIES = ("none", "stats", "affine", "all")
PUBLISHED = ("fedavg", "fedprox", "fedbn", "fedper", "fedrep", "fedbabu", "ditto", "pfedme")
PUBLISHED_SET = "published"


@dataclass(frozen=True)
class Method:
    """A way to train a model for each client.

    Attributes:
        name: Name in commands and tables.
        private: Patch policy.
        terms: Terms of a study by name; `{}` is replaced by `number`.
        number: The number of the method, such as lambda of Ditto; None if it has none.
        strategy: The strategy that the method needs; "" if it works with any.
    """

    name: str
    private: str
    terms: Mapping[str, str] = field(default_factory=dict)
    number: float | None = None
    strategy: str = ""

    def study_terms(self, strategy: str) -> dict[str, Any]:
        """Return the arguments for `make_study`; `strategy` is the comparison's."""
        given: dict[str, Any] = {name: text.format(self._number) for name, text in self.terms.items()}
        if "prox" in given:
            given["prox"] = float(given["prox"])
        return {"strategy": self.strategy or strategy, "private": self.private, **given}

    def options(self, strategy: str = "") -> str:
        """Return the method as options of `fedpatch run` and `fedpatch simulate`; `strategy` is the comparison's, if given."""
        return " ".join(f"--{name} {value}" for name, value in self.study_terms(strategy).items() if value != "")

    def __str__(self) -> str:
        """Return the text that `parse_methods` reads."""
        usual = METHODS.get(self.name)
        return self.name if usual is None or usual.number == self.number else f"{self.name}:{self._number}"

    @property
    def _number(self) -> str:
        return "" if self.number is None else f"{self.number:g}"


ALONE = Method("independent", EVERYTHING)
"""Learning alone: the training of the other methods, with nothing federated."""

METHODS: Mapping[str, Method] = {
    one.name: one
    for one in (
        *(Method(policy, policy) for policy in POLICIES),
        ALONE,
        Method("fedavg", "none"),
        Method("mtfl", "affine"),
        Method("fedbn", "norms"),
        Method("fedper", "head"),
        Method("fedrep", "head", {"phases": "private:{},public:1"}, 5),
        Method("fedbabu", "head", {"phases": "public:1", "finish": "private:{}"}, 5),
        Method("ditto", "none", {"personal": "ditto:{}"}, 0.1),
        Method("pfedme", "none", {"personal": "pfedme:{}"}, 1, strategy="fedavg"),
        Method("fedprox", "none", {"prox": "{}"}, 0.01),
    )
}
"""Sources: fedpatch's docs/how-to/personalisation.md. The number of the methods in _EPOCHS is the epochs of the head."""
_EPOCHS = ("fedrep", "fedbabu")


def parse_methods(text: str) -> list[Method]:
    """Parse NAME[:NUMBER],... into methods, each once; ALONE comes last.

    Args:
        text: Names of METHODS; `published` means the eight of PUBLISHED.

    Raises:
        UsageError: A name is unknown, or a number is not valid, not above 0, or given to a method that has none.

    Example:
        >>> [str(one) for one in parse_methods("fedavg,ditto:0.5")]
        ['fedavg', 'ditto:0.5', 'independent']
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError(f"--methods needs at least one of {', '.join(METHODS)}, or {PUBLISHED_SET}")
    found: dict[str, Method] = {}
    for name in names:
        for one in PUBLISHED if name == PUBLISHED_SET else (name,):
            method = _parse(one)
            found[str(method)] = method
    found.pop(ALONE.name, None)
    return [*found.values(), ALONE]


def _parse(text: str) -> Method:
    name, colon, number = text.partition(":")
    if name == PUBLISHED_SET:
        raise UsageError(f"--methods: {name} has no number; write {name} alone")
    if name not in METHODS:
        raise unknown_name("method", name, [*METHODS, PUBLISHED_SET])
    method = METHODS[name]
    if not colon:
        return method
    if method.number is None:
        raise UsageError(f"--methods: {name} has no number; write {name} alone")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise UsageError(
            f"--methods: {text!r} has no number above 0 and up to 1e6; write {method.name}:{method.number:g}"
        )
    if name in _EPOCHS and not (value.is_integer() and value < 100_000):
        raise UsageError(f"--methods: {text!r} has no whole number of epochs; write {name}:{method.number:g}")
    return replace(method, number=value)
