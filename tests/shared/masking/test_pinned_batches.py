"""The price of fixed batches (So et al. 2023), which fedpatch does not have: the table of the threat model."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedpatch.shared.masking.group_context import threshold_of
from fedpatch.shared.wire.masking_messages import ThresholdRule
from tests.support.paths import ROOT

SIZE, ROUNDS = 32, 20_000
BATCHES = (4, 8, 16)
DROP_OUTS = (1, 5, 10)
"""In percent: a device that has shared its secrets leaves before its upload is committed."""


def lost_share(batch: int, drop_out: float) -> float:
    """Return the share of reported updates that no sum has, where a sum has whole batches only, and enough devices."""
    reported = np.random.default_rng(1).random((ROUNDS, SIZE // batch, batch)) >= drop_out
    whole = reported.all(axis=2).sum(axis=1) * batch
    counted = np.where(whole >= threshold_of(ThresholdRule.TWO_THIRDS, SIZE), whole, 0)
    return 1 - float(counted.sum() / reported.sum())


def table() -> dict[int, list[int]]:
    """Return the rows of the page: percent by the percentage of drop-outs."""
    page = (ROOT / "docs" / "explanation" / "threat-model.md").read_text("utf-8")
    part = page.partition("### The price of fixed batches")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) % \| (.+) \|$", part, re.MULTILINE)
    return {int(first): [int(one.removesuffix(" %")) for one in rest.split(" | ")] for first, rest in rows}


@pytest.mark.parametrize("percent", DROP_OUTS)
def test_price_of_fixed_batches_is_that_of_the_page(percent):
    """The last column is that of groups without batches: a batch of one."""
    expected = [100 * lost_share(batch, percent / 100) for batch in (*BATCHES, 1)]
    assert table()[percent] == pytest.approx(expected, abs=0.75)
