"""The site's share of the hub's deadline."""

from __future__ import annotations

from typing import Any

import pytest

from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site_deadlines import SiteDeadlines
from fedpatch.shared.config.load import load


def settings(**changes: Any) -> RelaySettings:
    given = {"up": "mqtts://hub.example", "device_id": "site-7", "fleet": "site-7"}
    return load(RelaySettings, file=None, environ={}, flags=given | changes)


@pytest.mark.parametrize(
    ("left_s", "margin_s", "deadline_s"), [(100.0, 10.0, 90.0), (20.0, 10.0, 16.0), (20.0, 1.0, 19.0)]
)
def test_deadline_of_the_site_leaves_the_margin_but_at_most_a_fifth(left_s, margin_s, deadline_s):
    times = SiteDeadlines.of(settings(relay_margin_s=margin_s), left_s, masked=False)
    assert times.deadline_s == pytest.approx(deadline_s)
    assert times.unmask_s is None
    assert times.recruit_deadline_s <= deadline_s / 2


@pytest.mark.parametrize("left_s", [5.0, 100.0, 10_000.0])
def test_masked_round_of_the_site_is_unmasked_before_the_margin(left_s):
    plain, masked = (SiteDeadlines.of(settings(), left_s, masked=masked) for masked in (False, True))
    assert masked.unmask_s is not None
    assert masked.deadline_s + masked.unmask_s == pytest.approx(plain.deadline_s)
    assert masked.share_deadline_s < masked.deadline_s
