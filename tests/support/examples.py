"""Numbers of Hypothesis examples: `make test` draws a quarter of a test's number, all other runs draw the whole number."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

QUICK = not any(map(os.environ.get, ("CI", "FEDPATCH_EXAMPLES", "FEDPATCH_FUZZ_EFFORT", "FAULT_SEEDS")))
_LEAST = 10


def examples(count: int, **changes: Any) -> settings:
    """Return settings for `count` examples, in quick runs for a quarter of them, at least ten; `changes` as for `settings`."""
    quick = min(count, max(_LEAST, count // 4))
    return settings(max_examples=quick if QUICK else count, **changes)
