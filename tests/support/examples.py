"""Numbers of Hypothesis examples: `make test` draws a quarter of a test's number, CI a half, all other runs all of it."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_WHOLE = any(map(os.environ.get, ("FEDPATCH_EXAMPLES", "FEDPATCH_FUZZ_EFFORT", "FAULT_SEEDS")))
_CI = bool(os.environ.get("CI"))
QUICK = not _WHOLE and not _CI
SHARE = 1 if _WHOLE else 2 if _CI else 4
"""Which part of a test's number this run draws: all, a half, or a quarter."""
_LEAST = 10


def examples(count: int, **changes: Any) -> settings:
    """Return settings for this run's share of `count` examples, at least ten; `changes` as for `settings`."""
    return settings(max_examples=min(count, max(_LEAST, count // SHARE)), **changes)
