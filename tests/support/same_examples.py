"""The same examples of Hypothesis in every test process, so that a failing test fails each time."""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants


def forget_what_is_loaded() -> None:
    """Stop Hypothesis from drawing constants of our loaded modules now and then, which it does even if derandomized.

    The loaded modules depend on the earlier tests of the process, hence on the assignment of tests to processes.
    """
    setattr(HypothesisProvider, "_local_constants", Constants())  # noqa: B010  (a cached property of its own)
