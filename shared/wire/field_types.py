"""Types of message fields. Each type carries its limits, which the codec enforces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MAX_MEASURE = 1e12

Word = Annotated[
    str, Meta(max_length=64, pattern=r"^[ -~]*\Z")
]  # printable ASCII, because it is shown on terminals and in logs
Text = Annotated[str, Meta(max_length=500)]
MAX_COUNT = 2**53
"""Sums of counts of several devices end here too, since the devices choose the numbers."""
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Measure = Annotated[float, Meta(ge=-MAX_MEASURE, le=MAX_MEASURE)]
