"""A search for sums of few devices in large groups: which splits of masking sets (U2) and reported sets (U3) open one?

Small groups are searched exhaustively in test_agreement_law. Here a split names the target S, whose sum shall open, and the
partners P whose pair masks must be removed: each of them needs t - c members that do not report it, and a member leaves out at
most g - t. A balanced assignment exists whenever any does. Every split found is checked by the rules of the game, so the search
cannot find a sum that the devices' checks prevent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fedpatch.shared.masking.group_threshold import most_colluders, threshold_of
from fedpatch.shared.wire.masking_messages import ThresholdRule
from tests.shared.masking.test_agreement_law import NOTHING, ONE_SET, OTHER_SET, Game, Set, View

HALF, TWO_THIRDS = ThresholdRule.HALF, ThresholdRule.TWO_THIRDS
BOTH: dict[str, bool] = {}
DRAWS = 24


def splits(game: Game, target: int) -> Iterator[tuple[View, ...]]:
    """Yield splits that might open the sum of the first `target` honest members."""
    everybody = frozenset(range(game.size))
    wanted, colluders = frozenset(range(target)), everybody - frozenset(game.honest)
    others = [one for one in game.honest if one not in wanted]
    least = max(0, game.threshold - target - len(colluders))
    for partners in (others, others[:least]):
        own = everybody if partners is others else wanted | colluders | frozenset(partners)
        masking = [own if one in wanted else everybody for one in game.honest]
        yield tuple(zip(masking, _balanced(game, masking, wanted, partners), strict=True))
        # One reported set for all, without the partners.
        rest = everybody - frozenset(partners)
        yield tuple((one, rest if rest <= one and len(rest) >= game.threshold else None) for one in masking)


def _balanced(game: Game, masking: list[Set], wanted: Set, partners: list[int]) -> Iterator[Set | None]:
    """Yield a reported set for each member that leaves out as many partners as it may, in turn."""
    place = 0
    for one in masking:
        most = len(one) - game.threshold
        left_out = (
            {partners[(place + step) % len(partners)] for step in range(min(most, len(partners)))}
            if partners
            else set()
        )
        place += len(left_out)
        yield one - (left_out - wanted)


def drawn(game: Game, seed: int) -> Iterator[tuple[View, ...]]:
    """Yield random splits of a group into four blocks, each with a masking set and a reported set of blocks."""
    random_ = random.Random(seed)
    everybody = list(range(game.size))
    for _ in range(DRAWS):
        cuts = sorted(random_.sample(range(1, len(game.honest)), 3))
        blocks = [
            frozenset(everybody[low:high]) for low, high in zip([0, *cuts], [*cuts, len(game.honest)], strict=True)
        ]
        colluders = frozenset(everybody[len(game.honest) :])
        views: list[View] = []
        for block in blocks:
            masking = _union(random_, blocks, game.threshold) | block | colluders
            reported = masking - random_.choice((frozenset(), *(one for one in blocks)))
            views += [(masking, reported if len(reported) >= game.threshold else None)] * len(block)
        yield tuple(views)


def _union(random_: random.Random, blocks: list[Set], least: int) -> Set:
    found: Set = frozenset()
    for block in random_.sample(blocks, len(blocks)):
        found |= block
        if len(found) >= least and random_.random() < 0.5:
            break
    return found


def checked(game: Game, views: tuple[View, ...]) -> tuple[View, ...]:
    """Return the views without the reported sets that a device refuses, because of the codes over the masking set."""
    if not game.over_masking_set:
        return views
    result: list[View] = []
    for masking, reported in views:
        others = {views[one][0] for one in reported or () if one in game.honest}
        result.append((masking, reported if others <= {masking} else None))
    return tuple(result)


def least_sum(game: Game, most: int) -> int | None:
    """Return the size of the least sum of honest devices that a split opens, up to `most`; None if there is none."""
    for target in range(1, most + 1):
        sizes = [len(one) for views in splits(game, target) for one in game.opened(checked(game, views))]
        if sizes and min(sizes) <= target:
            return min(sizes)
    return None


def least_colluders(size: int, rule: ThresholdRule, **checks: bool) -> int:
    """Return with how many colluders a split opens a single device."""
    threshold = threshold_of(rule, size)
    return next(c for c in range(size) if least_sum(Game(size, threshold, c, **checks), 1) == 1)


@pytest.mark.parametrize(
    ("size", "rule", "colluders"),
    [
        (8, HALF, 0),
        (32, HALF, 0),
        (10, TWO_THIRDS, 2),
        (32, TWO_THIRDS, 6),
        pytest.param(64, TWO_THIRDS, 9, marks=pytest.mark.medium),
    ],
)
def test_search_opens_single_devices_of_large_groups_that_agree_on_nothing(size, rule, colluders):
    """As many colluders as (t - 1 - c)(t - c) <= (g - 1 - c)(g - t) needs."""
    assert least_colluders(size, rule, **NOTHING) == colluders


@pytest.mark.parametrize(
    ("size", "rule", "colluders", "found"),
    [(8, HALF, 0, 4), (32, HALF, 0, 4), (32, TWO_THIRDS, 0, 18), (32, TWO_THIRDS, 11, 2)],
)
def test_search_opens_sums_of_few_devices_that_agree_on_the_masking_set_alone(size, rule, colluders, found):
    """As small as (g - c - |S|)(t - c) <= (g - c)(g - t) allows."""
    threshold = threshold_of(rule, size)
    assert least_sum(Game(size, threshold, colluders, **ONE_SET), threshold - colluders - 1) == found


def test_search_opens_single_devices_that_do_not_check_the_masking_sets_of_the_reported_ones():
    threshold = threshold_of(TWO_THIRDS, 32)
    assert least_sum(Game(32, threshold, 11, **OTHER_SET), 1) == 1


@pytest.mark.parametrize("rule", [HALF, TWO_THIRDS])
@pytest.mark.parametrize("size", [8, 10, 32, pytest.param(64, marks=pytest.mark.medium)])
def test_search_finds_no_small_sum_of_devices_that_agree_on_both_sets(size, rule):
    """For no number of colluders below 2 t - g."""
    threshold = threshold_of(rule, size)
    for colluders in {0, most_colluders(threshold, size) // 2, most_colluders(threshold, size)}:
        game = Game(size, threshold, colluders, **BOTH)
        assert least_sum(game, threshold - colluders - 1) is None, colluders
        for views in drawn(game, seed=colluders):
            assert all(len(one) >= threshold - colluders for one in game.opened(checked(game, views))), views
