"""The price of fixed batches (So et al. 2023), which fedpatch does not have: the table of the threat model."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.wire.masking_messages import MAX_GROUP, ThresholdRule
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text("utf-8")
SIZE, ROUNDS = 32, 20_000
BATCHES = (4, 8, 16)
DROP_OUTS = (1, 5, 10)
"""In percent: a device that has shared its secrets leaves before its upload is committed."""


def lost_share(batch: int, drop_out: float, size: int = SIZE) -> float:
    """Return the share of reported updates that no sum has, where a sum has whole batches only, and enough devices."""
    reported = np.random.default_rng(1).random((ROUNDS, size // batch, batch)) >= drop_out
    whole = reported.all(axis=2).sum(axis=1) * batch
    counted = np.where(whole >= threshold_of(ThresholdRule.TWO_THIRDS, size), whole, 0)
    return 1 - float(counted.sum() / reported.sum())


def table() -> dict[int, list[int]]:
    """Return the rows of the page: percent by the percentage of drop-outs."""
    part = PAGE.partition("### The price of fixed batches")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) % \| (.+) \|$", part, re.MULTILINE)
    return {int(first): [int(one.removesuffix(" %")) for one in rest.split(" | ")] for first, rest in rows}


@pytest.mark.parametrize("percent", DROP_OUTS)
def test_price_of_fixed_batches_is_that_of_the_page(percent):
    """The last column is that of groups without batches: a batch of one."""
    expected = [100 * lost_share(batch, percent / 100) for batch in (*BATCHES, 1)]
    assert table()[percent] == pytest.approx(expected, abs=0.75)


def test_batches_of_8_cost_as_much_in_the_largest_groups_where_few_leave():
    assert 100 * lost_share(8, 0.01, size=MAX_GROUP) == pytest.approx(8, abs=0.75)
    assert "With 3 colluders batches of 8 leave\n5 devices, at the price above (8 % in groups of 32 and of 64" in PAGE


def test_batches_that_end_with_their_first_lost_device_are_as_many_as_on_the_page():
    ended = {batch: round(100 * (1 - 0.99 ** (12 * batch))) for batch in BATCHES}
    assert (
        f"{ended[4]} % of the batches of 4, {ended[8]} % of 8 and {ended[16]} % of 16 have ended after a year" in PAGE
    )


def test_one_new_draw_of_batches_and_one_colluder_give_the_update_of_a_single_device():
    """The colluder takes the victim's place in its batch; both draws have whole batches and enough devices."""
    batch, (victim, colluder) = 8, (0, 31)
    before = np.arange(SIZE)
    after = before.copy()
    after[[victim, colluder]] = colluder, victim
    updates = np.random.default_rng(1).integers(-100, 100, SIZE)
    summed = 3 * batch
    assert summed >= threshold_of(ThresholdRule.TWO_THIRDS, SIZE)
    difference = updates[before[:summed]].sum() - updates[after[:summed]].sum()
    assert difference + updates[colluder] == updates[victim]
