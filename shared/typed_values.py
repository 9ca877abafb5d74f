"""Types that msgspec converts to, described once and in one thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec


def learn_types(*kinds: Any) -> None:
    """Let msgspec describe types now, while the module that defines them is imported.

    Otherwise msgspec does so at the first conversion, and version 0.22 shows an incomplete description to other threads: the
    process ends with a segmentation fault (one of six processes in which 16 threads began with the same messages).

    Args:
        kinds: The types; types within them are described too.

    Example:
        >>> learn_types(tuple[str, int])
    """
    for kind in kinds:
        with suppress(msgspec.ValidationError):
            msgspec.convert(None, kind)
