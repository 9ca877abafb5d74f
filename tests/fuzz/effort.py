"""Number of examples of the fuzz tests: FEDPATCH_FUZZ_EFFORT multiplies it (`make fuzz` sets it)."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.support.examples import examples

EFFORT = int(os.environ.get("FEDPATCH_FUZZ_EFFORT") or 1)


def tries(count: int, **changes: int | None) -> settings:
    """Return settings for `count` examples times the effort, a quarter of that in quick runs."""
    return examples(count * EFFORT, **changes)
