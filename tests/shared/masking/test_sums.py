"""Sums of masked groups against an independent sum of integers, for any survivors, order and threshold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fedpatch.shared.masking.unmasking as opening
from fedpatch.shared.masking.keys import seal_box
from fedpatch.shared.masking.masked_blob import add_masks
from fedpatch.shared.masking.secret_sharing import join_shares
from fedpatch.shared.masking.unmasking import OpeningFailed
from fedpatch.shared.wire.masking_messages import ThresholdRule
from tests.support.examples import examples
from tests.support.masked_group import PlayedGroup, check_transcript, request_of, terms_of

SIZE = 16  # elements of a vector
ALL_OF_SIX = frozenset(range(6))


def played(size, *, masking, reported, revealing, bits=8, seed=0, rule=ThresholdRule.HALF):
    """Return the unmasked sum of a group, the integer sum of its reported vectors, and the opening."""
    group = PlayedGroup.of(size, seed, terms_of(size, bits=bits, threshold=rule))
    group.share(sorted(masking))
    group.distribute(frozenset(masking))
    dtype = np.dtype("<u1" if bits == 8 else "<u2")
    values = np.random.default_rng(seed).integers(0, 2**bits, (size, SIZE))
    total = np.zeros(SIZE, dtype)
    for index in reported:
        total += group.devices[index].masked(values[index].astype(dtype))
    reveals = group.reveals(frozenset(reported), revealing)
    opening = group.open(frozenset(masking), frozenset(reported), reveals)
    check_transcript(group.devices, [group.group])
    expected = sum(values[index].astype(int) for index in reported) % 2**bits
    return add_masks(total, opening.masks).astype(int), expected, opening


@st.composite
def schedules(draw):
    """The members that share, report and reveal: at least the threshold each, each in any order.

    Groups are small, since the time grows with the square of the number of devices.
    """
    size = draw(st.integers(2, 12))
    rule = draw(st.sampled_from(ThresholdRule))
    threshold = (size // 2 if rule is ThresholdRule.HALF else 2 * size // 3) + 1
    order = draw(st.permutations(range(size)))
    masking = order[: draw(st.integers(threshold, size))]
    reported = draw(st.permutations(masking))[: draw(st.integers(threshold, len(masking)))]
    revealing = draw(st.permutations(masking))[: draw(st.integers(threshold, len(masking)))]
    return {"size": size, "rule": rule, "masking": masking, "reported": reported, "revealing": revealing}


def large(size, rule):
    return {
        "size": size,
        "rule": rule,
        "masking": range(size),
        "reported": range(2, size),
        "revealing": range(size - 2),
    }


@pytest.mark.medium
@examples(20)
@given(schedules(), st.sampled_from([8, 16]), st.integers(0, 100))
@example(large(32, ThresholdRule.HALF), 8, 0)
@example(large(64, ThresholdRule.TWO_THIRDS), 16, 0)
def test_sum_of_any_survivors_is_that_of_whole_numbers(schedule, bits, seed):
    """The sums are equal bit for bit, for any losses after sharing, if at least the threshold reveals."""
    found, expected, opening = played(bits=bits, seed=seed, **schedule)
    assert found.tolist() == expected.tolist()
    assert opening.wrong == frozenset()


def test_fewer_reveals_than_the_threshold_open_nothing():
    with pytest.raises(OpeningFailed, match="2 members revealed their shares, 3 are needed"):
        played(5, masking=range(5), reported=range(4), revealing=[0, 1])


def test_masked_update_shows_nothing_of_its_values():
    """A masked vector of zeros looks like a keystream: all values are about equally frequent."""
    group = PlayedGroup.of(3)
    group.share()
    group.distribute(frozenset(range(3)))
    masked = group.devices[0].masked(np.zeros(256 * 200, np.uint8))
    counts = np.bincount(masked, minlength=256)
    assert 120 < counts.min() <= counts.max() < 290


def with_wrong_share(reveals, liar, member):
    shares = list(reveals[liar])
    shares[member] = bytes(32) + b"\x01"
    return reveals | {liar: tuple(shares)}


@pytest.mark.parametrize("member", [1, 4])
@pytest.mark.parametrize("liar", [0, 2])
def test_wrong_share_does_not_change_the_sum_and_blames_nobody(member, liar):
    """The share is of a self-mask (member 1 reported) or a mask key (member 4 was lost); its dealer or holder may be wrong."""
    group = PlayedGroup.of(6)
    group.share()
    group.distribute(frozenset(range(6)))
    reported = frozenset({0, 1, 2, 3})
    total = sum((group.devices[one].masked(np.full(SIZE, one, np.uint8)) for one in reported), np.zeros(SIZE, np.uint8))
    reveals = with_wrong_share(group.reveals(reported, range(6)), liar, member)
    opening = group.open(frozenset(range(6)), reported, reveals)
    assert opening.wrong == frozenset()
    assert add_masks(total, opening.masks).tolist() == [6] * SIZE


@pytest.mark.parametrize(("count", "named"), [(3, set()), (4, {2})])
def test_sender_of_wrong_shares_of_more_than_half_of_the_members_is_named(count, named):
    group = PlayedGroup.of(6)
    group.share()
    group.distribute(ALL_OF_SIX)
    reveals = group.reveals(ALL_OF_SIX, range(6))
    for member in range(count):
        reveals = with_wrong_share(reveals, 2, member)
    assert group.open(ALL_OF_SIX, ALL_OF_SIX, reveals).wrong == named


def test_member_whose_share_was_wrong_is_tried_last(monkeypatch):
    """One of twelve members reveals a wrong share of each secret; only the first secret needs several subsets."""
    size, tried = 12, []
    group = PlayedGroup.of(size)
    group.share()
    everybody = frozenset(range(size))
    group.distribute(everybody)
    reveals = group.reveals(everybody, range(size))
    for member in range(size):
        reveals = with_wrong_share(reveals, 0, member)

    def counted(shares):
        tried.append(shares)
        return join_shares(shares)

    monkeypatch.setattr(opening, "join_shares", counted)
    assert group.open(everybody, everybody, reveals).wrong == {0}
    assert sum(0 in shares for shares in tried) + size <= len(tried) + 1 < 2 * size


def test_too_few_right_shares_among_all_members_open_nothing():
    group = PlayedGroup.of(6)
    group.share()
    group.distribute(ALL_OF_SIX)
    reveals = group.reveals(ALL_OF_SIX, range(6))
    for liar in range(3):
        reveals = with_wrong_share(reveals, liar, 5)
    with pytest.raises(OpeningFailed, match="no 4 of 6 shares lead to the secret of pi-05"):
        group.open(ALL_OF_SIX, ALL_OF_SIX, reveals)


def test_members_that_deal_wrong_shares_cannot_get_another_one_blamed():
    """Two of six members deal wrong shares to member 0, which reveals them unchanged."""
    group = PlayedGroup.of(6)
    group.share()
    reported = frozenset(range(6))
    for dealer in (3, 5):
        device, shares = group.devices[dealer], group.shares[dealer]
        forged = (bytes(32) + b"\x01", bytes(32) + b"\x02")
        box = seal_box(
            device.state.secrets.share, group.roster.members[0].keys.share, group.context, (dealer, 0), forged
        )
        group.shares[dealer] = replace(shares, boxes=(box, *shares.boxes[1:]))
    group.distribute(reported)
    vectors = [device.masked(np.full(SIZE, 7, np.uint8)) for device in group.devices]
    opening = group.open(reported, reported, group.reveals(reported, range(6)))
    assert opening.wrong == frozenset()
    assert add_masks(sum(vectors, np.zeros(SIZE, np.uint8)), opening.masks).tolist() == [42] * SIZE


@pytest.mark.parametrize("member", [1, 4])
def test_wrong_share_among_just_the_threshold_opens_nothing(member):
    group = PlayedGroup.of(6)
    group.share()
    group.distribute(frozenset(range(6)))
    reported = frozenset({0, 1, 2, 3})
    reveals = with_wrong_share(group.reveals(reported, range(4)), 0, member)
    with pytest.raises(OpeningFailed, match=f"lead to the secret of pi-0{member}"):
        group.open(frozenset(range(6)), reported, reveals)


def test_missing_share_of_a_box_that_did_not_open_does_not_change_the_sum():
    group = PlayedGroup.of(5)
    group.share()
    damaged = group.inbox_of(0, frozenset(range(5)))
    boxes = (b"", b"\x00" * 82, *damaged.boxes[2:])
    group.devices[0].take(replace(damaged, boxes=boxes))
    for index in range(1, 5):
        group.devices[index].take(group.inbox_of(index, frozenset(range(5))))
    reported = frozenset(range(4))
    total = sum((group.devices[one].masked(np.full(SIZE, one, np.uint8)) for one in reported), np.zeros(SIZE, np.uint8))
    reveals = group.reveals(reported, [0, 1, 2, 4])
    assert reveals[0][1] == b""
    opening = group.open(frozenset(range(5)), reported, reveals)
    assert opening.wrong == frozenset()
    assert add_masks(total, opening.masks).tolist() == [6] * SIZE


def test_two_rounds_of_a_device_have_other_secrets():
    """A self-mask secret that is used twice would reveal the difference of two updates."""
    group = PlayedGroup.of(3)
    device = group.devices[0]
    before = device.state.secrets
    device.accept(request_of(terms_of(3)), replace(device.state.name, round=2))
    after = device.state.secrets
    assert len({before.share, before.mask, before.self_mask} & {after.share, after.mask, after.self_mask}) == 0
