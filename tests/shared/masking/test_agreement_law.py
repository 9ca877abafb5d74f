"""The law of the agreement, by an exhaustive search over small groups: which sums can a coordinator that lies open?

The model has no cryptography. Each honest member has a masking set (U2) and a reported set (U3) of the coordinator's choice,
also different ones for each member, and reveals where the checks of the device let it. Colluders vouch for anything and give
all of their shares. A sum of honest members opens if the self-mask of each of them is known, and each pair mask cancels in it
or is known.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, islice, product

import pytest

from fedpatch.shared.masking.group_threshold import most_colluders, threshold_of
from fedpatch.shared.wire.masking_messages import ThresholdRule

Set = frozenset[int]
View = tuple[Set, Set | None]
"""Masking set and reported set of a member; None: it was never asked for a sum."""


@dataclass(frozen=True)
class Game:
    """A group of `size`, whose last `colluders` members help the coordinator.

    Attributes:
        over_masking_set: Whether a member demands that each reported one vouches for its own masking set.
        over_both: Whether a member demands that as many as the threshold agree to its own sets.
    """

    size: int
    threshold: int
    colluders: int
    over_masking_set: bool = True
    over_both: bool = True

    @cached_property
    def honest(self) -> range:
        return range(self.size - self.colluders)

    def views(self) -> Iterator[tuple[View, ...]]:
        """Yield the views of all honest members. Those that differ in the names of members alone are not left out."""
        everybody = range(self.size)
        masking = [[one for one in subsets(everybody, self.threshold) if member in one] for member in self.honest]
        for chosen in product(*masking):
            options = [self._reported(chosen, member) for member in self.honest]
            yield from (tuple(zip(chosen, reported, strict=True)) for reported in product(*options))

    def _reported(self, masking: tuple[Set, ...], member: int) -> list[Set | None]:
        """Return the reported sets for which a member might reveal."""
        options: list[Set | None] = [None]
        for reported in subsets(masking[member], self.threshold):
            others = [masking[one] for one in reported if one in self.honest]
            if not self.over_masking_set or all(one == masking[member] for one in others):
                options.append(reported)
        return options

    def opened(self, views: tuple[View, ...]) -> list[Set]:
        """Return the least sets of honest members whose sum the coordinator opens."""
        revealing = [one for one in self.honest if self._reveals(views, one)]
        self_masks, keys = self._known(views, revealing)
        found = []
        for first in self.honest:
            part, edge, whole = {first}, [first], True
            while edge and whole:
                one = edge.pop()
                whole = one in self_masks
                # The pair masks that this member's vector has, and that the coordinator does not know.
                for other in (views[one][0] & set(self.honest)) - {one}:
                    if not {one, other} & keys:
                        whole &= one in views[other][0]
                        edge += [] if other in part else [other]
                        part.add(other)
            if whole and frozenset(part) not in found:
                found.append(frozenset(part))
        return found

    def _reveals(self, views: tuple[View, ...], member: int) -> bool:
        if views[member][1] is None:
            return False
        if not self.over_both:
            return True
        agreeing = sum(views[one] == views[member] for one in self.honest)
        return agreeing + self.colluders >= self.threshold

    def _known(self, views: tuple[View, ...], revealing: list[int]) -> tuple[Set, Set]:
        """Return the honest members whose self-mask, and whose mask key, the coordinator rebuilds."""
        self_masks, keys = set(), set()
        for owner in self.honest:
            reporting = sum(owner in (views[one][1] or ()) for one in revealing)
            missing = sum(owner in views[one][0] and owner not in (views[one][1] or ()) for one in revealing)
            if reporting + self.colluders >= self.threshold:
                self_masks.add(owner)
            if missing + self.colluders >= self.threshold:
                keys.add(owner)
        return frozenset(self_masks), frozenset(keys)

    def drawn_views(self, seed: int = 7) -> Iterator[tuple[View, ...]]:
        """Yield random views: the first member has a masking set of its own, each member a least reported set of its own."""
        random_, everybody = random.Random(seed), frozenset(range(self.size))
        own = [one for one in subsets(everybody, self.threshold) if 0 in one]
        while True:
            masking = (random_.choice(own), *(everybody for _ in self.honest[1:]))
            options = [[one for one in self._reported(masking, member) if one is not None] for member in self.honest]
            nothing: list[Set | None] = [None]
            least = [[one for one in some if len(one) == self.threshold] or nothing for some in options]
            yield tuple(zip(masking, (random_.choice(some) for some in least), strict=True))

    def opens(self, most: int, views: Iterable[tuple[View, ...]]) -> bool:
        """Return whether a choice of sets opens a sum of at most so many honest devices."""
        return any(len(one) <= most for chosen in views for one in self.opened(chosen))


def subsets(members: range | Set, least: int) -> list[Set]:
    """All subsets of at least so many members."""
    sizes = range(least, len(members) + 1)
    return [frozenset(one) for one in chain.from_iterable(combinations(sorted(members), size) for size in sizes)]


GROUPS = [(3, 3, 0), (3, 3, 1), (3, 3, 2), (4, 3, 0), (4, 3, 1), (5, 4, 1), (5, 4, 2)]
"""Size, threshold and colluders, fewer than 2 t - g."""


@pytest.mark.parametrize(("size", "threshold", "colluders"), GROUPS)
def test_no_choice_of_sets_opens_a_sum_of_fewer_honest_devices_than_the_threshold_without_colluders(
    size, threshold, colluders
):
    """And no choice opens two different sums, so that none can be taken from another."""
    assert colluders <= most_colluders(threshold, size)
    game = Game(size, threshold, colluders)
    for views in game.views():
        opened = game.opened(views)
        assert len(opened) <= 1
        assert all(len(one) >= threshold - colluders for one in opened), views


def test_with_one_more_colluder_than_the_law_allows_two_sums_open():
    """The bound is tight: 2 t - g colluders let two halves agree to different sums, whose difference is one device."""
    game = Game(5, 3, 1)
    assert game.colluders == most_colluders(3, 5) + 1
    views = list(two_sums(game))
    assert any(len({reported for _, reported in one if reported}) == 2 for one in views)


def two_sums(game: Game) -> Iterator[tuple[View, ...]]:
    """Yield views with which two sets of members reveal for different sums."""
    everybody = frozenset(range(game.size))
    for left_out in combinations(game.honest, 2):
        sums = [everybody - {one} for one in left_out]
        for choice in product((0, 1), repeat=len(game.honest)):
            views = tuple((everybody, sums[one]) for one in choice)
            if all(game._reveals(views, one) for one in game.honest):
                yield views


NOTHING, ONE_SET, OTHER_SET = (
    {"over_masking_set": False, "over_both": False},
    {"over_both": False},
    {"over_masking_set": False},
)


@pytest.mark.parametrize(
    ("size", "threshold", "colluders", "checks", "found"),
    [
        # Members agree on nothing: a masking set of its own for the victim, and other reported sets for the rest.
        (4, 3, 1, NOTHING, 1),
        (5, 3, 0, NOTHING, 1),
        # Codes over the masking set alone: reported sets may differ from device to device.
        (5, 3, 0, ONE_SET, 2),
        # Agreement to both sets, but not to the masking set of each reported member.
        (4, 3, 1, OTHER_SET, 1),
    ],
)
def test_search_finds_the_attacks_on_weaker_checks(size, threshold, colluders, checks, found):
    """With fewer colluders than the law allows."""
    assert colluders <= most_colluders(threshold, size)
    assert found < threshold - colluders
    game = Game(size, threshold, colluders, **checks)
    views = game.views() if size < 5 else islice(game.drawn_views(), 50_000)
    assert game.opens(found, views)


@pytest.mark.parametrize(
    ("size", "rule", "colluders"),
    [
        (8, ThresholdRule.HALF, 1),
        (8, ThresholdRule.TWO_THIRDS, 3),
        (10, ThresholdRule.TWO_THIRDS, 3),
        (32, ThresholdRule.HALF, 1),
        (32, ThresholdRule.TWO_THIRDS, 11),
        (64, ThresholdRule.TWO_THIRDS, 21),
    ],
)
def test_greatest_number_of_colluders_is_the_one_of_the_law(size, rule, colluders):
    """Two sets of t - c honest members each do not fit into g - c."""
    threshold = threshold_of(rule, size)
    assert most_colluders(threshold, size) == colluders
    assert 2 * (threshold - colluders) > size - colluders
    assert 2 * (threshold - colluders - 1) <= size - colluders - 1
