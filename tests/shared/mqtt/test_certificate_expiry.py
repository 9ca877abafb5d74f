"""The time before the end of a certificate from which on it is to be renewed."""

from __future__ import annotations

import pytest

from fedpatch.shared.mqtt.certificate_expiry import WARN_DAYS, ends_soon, left_days

DAY_S = 86_400


@pytest.mark.parametrize(
    ("left_s", "days", "soon"),
    [(WARN_DAYS * DAY_S, WARN_DAYS, False), (WARN_DAYS * DAY_S - 1, WARN_DAYS - 1, True), (0, 0, True), (-1, -1, True)],
)
def test_certificate_ends_soon_below_whole_warn_days(left_s, days, soon):
    assert (left_days(1e9 + left_s, 1e9), ends_soon(1e9 + left_s, 1e9)) == (days, soon)
