"""Types of message fields. Each type carries its limits, which the codec enforces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MAX_MEASURE = 1e12

Word = Annotated[
    str, Meta(max_length=64, pattern=r"^[ -~]*\Z")
]  # printable ASCII, because it is shown on terminals and in logs
Text = Annotated[str, Meta(max_length=500)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Measure = Annotated[float, Meta(ge=-MAX_MEASURE, le=MAX_MEASURE)]
