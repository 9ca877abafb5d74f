"""How hard the fuzz tests try: FEDPATCH_FUZZ_EFFORT multiplies their examples (`make fuzz` sets it)."""

from __future__ import annotations

import os

from hypothesis import settings

EFFORT = int(os.environ.get("FEDPATCH_FUZZ_EFFORT") or 1)


def tries(examples: int, **changes: int | None) -> settings:
    """Settings for so many examples, times the effort."""
    return settings(max_examples=examples * EFFORT, **changes)  # type: ignore[arg-type]  # its stub names each one
