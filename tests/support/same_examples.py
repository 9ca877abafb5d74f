"""The examples that Hypothesis draws, the same in every process that plays tests: what fails fails each time."""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants


def forget_what_is_loaded() -> None:
    """Hypothesis draws now and then from the constants of all our modules that are loaded, also where it is derandomized.

    Which these are depends on the tests that the process played before, hence on how they are shared out.
    """
    setattr(HypothesisProvider, "_local_constants", Constants())  # noqa: B010  (a cached property of its own)
