"""The context of a group depends on every byte that affects training or masking, and on nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking import group_context
from fedpatch.shared.masking.group_context import (
    HARMLESS,
    MaskingGroup,
    bitmap_of,
    check_terms,
    highest_code,
    members_of,
    request_digest,
)
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.wire.features import MASKED_FEATURE, MASKING_VERSION, SUMS_FEATURE
from fedpatch.shared.wire.masking_messages import GroupMember, MaskingKeys, Roster, ThresholdRule
from fedpatch.shared.wire.messages import WorkRequest
from fedpatch.shared.wire.privacy_messages import PrivacyTerms
from tests.support.masked_group import request_of, terms_of

PRIVACY = PrivacyTerms("skellam", 1.0, 0.5, 1e-5, 10, 100)
TERMS = terms_of(10)
REQUEST = request_of(TERMS)
KEYS = MaskingKeys(b"\x01" * 32, b"\x02" * 32)
ROSTER = Roster(0, 2, (GroupMember("pi-1", KEYS), GroupMember("pi-2", KEYS)))
BASE = request_digest("digits", "run-1", 1, REQUEST)


def secure(**changes):
    return replace(REQUEST, secure=replace(TERMS, **changes))


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, schema="5d" * 32),
        replace(REQUEST, private="all"),
        # If only one device of a group were asked to measure, the sum would be that device's figure.
        replace(REQUEST, measure_independent=True),
        replace(REQUEST, encoding="masked-u16"),
        replace(REQUEST, model=replace(REQUEST.model, digest="ac" * 32)),
        replace(REQUEST, model=replace(REQUEST.model, schema="ce" * 32)),
        # Other values under the same digest of the model's blob: by differences, or from the device's cache.
        replace(REQUEST, content="ed" * 32),
        replace(REQUEST, evaluate=True),
        replace(REQUEST, privacy=PRIVACY),
        *(
            replace(REQUEST, plan=replace(REQUEST.plan, **one))
            for one in ({"seed": 1}, {"learning_rate": 0.2}, {"steps": 3}, {"prox": 0.1})
        ),
        *(
            secure(**one)
            for one in (
                {"threshold": ThresholdRule.TWO_THIRDS},
                {"group_min": 3},
                {"group_max": 11},
                {"bits": 16},
                {"keep": 2},
                {"seed": b"\x01" * 16},
                {"clip": 2.0},
                {"weight_cap": 601},
                {"grid": b"\x00\x00\x00\x40"},
                {"strict": True},
            )
        ),
    ],
)
def test_request_that_differs_in_the_work_has_another_digest(request_):
    assert request_digest("digits", "run-1", 1, request_) != BASE


def test_digest_depends_on_task_run_and_round():
    others = {
        request_digest(*name, REQUEST) for name in (("d", "run-1", 1), ("digits", "run-2", 1), ("digits", "run-1", 2))
    }
    assert len(others | {BASE}) == 4


@pytest.mark.parametrize("name", [one.name for one in fields(PrivacyTerms)])
def test_request_with_other_terms_of_privacy_has_another_digest(name):
    others: dict[str, Any] = {
        "mechanism": "gaussian",
        "noise_multiplier": 2.0,
        "clip": 0.25,
        "denominator": 11,
        "delta": 1e-6,
        "steps": 99,
    }
    changed = replace(REQUEST, privacy=replace(PRIVACY, **{name: others[name]}))
    assert request_digest("digits", "run-1", 1, changed) != request_digest(
        "digits", "run-1", 1, replace(REQUEST, privacy=PRIVACY)
    )


def test_every_field_of_a_request_is_in_the_digest_or_listed_as_harmless():
    """A field that a later version adds is in the digest, until someone shows that it may differ."""
    others: dict[str, Any] = {
        "schema": "5d" * 32,
        "private": "all",
        "plan": replace(REQUEST.plan, seed=1),
        "model": replace(REQUEST.model, digest="ac" * 32),
        "encoding": "masked-u16",
        "measure_independent": True,
        "privacy": PRIVACY,
        "secure": replace(TERMS, clip=2.0),
        "evaluate": True,
        "content": "ed" * 32,
        "revocations": b"list",
    }
    assert others.keys() | HARMLESS.keys() == {one.name for one in fields(WorkRequest)}
    for name, value in others.items():
        assert request_digest("digits", "run-1", 1, replace(REQUEST, **{name: value})) != BASE, name


def test_request_in_another_version_of_masking_has_another_digest(monkeypatch):
    """The word by which a coordinator chooses devices, and the digest that they sign, have one number."""
    assert {MASKED_FEATURE, SUMS_FEATURE} == {f"masked_{MASKING_VERSION}", f"masked_sums_{MASKING_VERSION}"}
    monkeypatch.setattr(group_context, "MASKING_VERSION", MASKING_VERSION - 1)
    assert request_digest("digits", "run-1", 1, REQUEST) != BASE


def test_whole_number_in_a_field_of_floats_has_the_digest_of_the_float():
    one, other = (replace(REQUEST, plan=replace(REQUEST.plan, learning_rate=rate)) for rate in (1, 1.0))
    assert request_digest("digits", "run-1", 1, one) == request_digest("digits", "run-1", 1, other)


def test_whole_numbers_that_are_one_float_have_digests_of_their_own():
    digests = {
        request_digest("digits", "run-1", 1, replace(REQUEST, plan=replace(REQUEST.plan, seed=2**53 + more)))
        for more in range(-1, 3)
    }
    assert len(digests) == 4


def test_digest_does_not_depend_on_what_may_differ_between_devices_and_epochs():
    other = replace(REQUEST, deadline_s=5.0, chunk_bytes=7, features=("x",))
    other = replace(other, model=replace(other.model, chunk_bytes=5, chunk_count=2))
    assert request_digest("digits", "run-1", 1, other) == BASE


@pytest.mark.parametrize(
    "roster",
    [
        replace(ROSTER, group=1),
        replace(ROSTER, threshold=1),
        replace(ROSTER, members=ROSTER.members[:1]),
        replace(ROSTER, members=(GroupMember("pi-0", KEYS), ROSTER.members[1])),
        replace(ROSTER, members=(GroupMember("pi-1", replace(KEYS, mask=b"\x03" * 32)), ROSTER.members[1])),
        replace(ROSTER, members=(GroupMember("pi-1", replace(KEYS, share=b"\x03" * 32)), ROSTER.members[1])),
    ],
)
def test_each_roster_has_its_own_context(roster):
    assert MaskingGroup.of_roster(BASE, roster).context != MaskingGroup.of_roster(BASE, ROSTER).context


@pytest.mark.parametrize("members", [ROSTER.members[::-1], ROSTER.members[:1] * 2])
def test_roster_with_members_out_of_order_or_twice_is_a_wire_error(members):
    with pytest.raises(WireError, match="distinct and sorted"):
        MaskingGroup.of_roster(BASE, replace(ROSTER, members=members))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep": 2}, "keep is 2; it must be 1"),
        ({"bits": 12}, "12 bits"),
        ({"group_min": 11}, "group_min 11 is above"),
        ({"strict": True}, "threshold of two_thirds"),
        ({"grid": b"\x00\x00\x80"}, "3 bytes"),
        ({"grid": b"\x00\x00\x00\x00"}, "not a positive number"),
        ({"grid": b"\x00\x00\xc0\x7f"}, "not a positive number"),
        ({"grid": b"\x00\x00\x80\x7f"}, "not a positive number"),
        ({"grid": b"\x00\x00\x80\xbf"}, "not a positive number"),
    ],
)
def test_impossible_terms_are_a_wire_error_that_names_the_field(changes, words):
    with pytest.raises(WireError, match=words):
        check_terms(replace(TERMS, **changes), "masked-u8")


def test_no_sum_of_a_group_overflows():
    for size in range(2, 65):
        assert size * highest_code(8, size) <= 127
        assert size * highest_code(16, size) <= 32767


@given(st.integers(2, 64))
def test_threshold_is_more_than_a_half_or_two_thirds(size):
    assert size / 2 < threshold_of(ThresholdRule.HALF, size) <= size / 2 + 1
    assert 2 * size / 3 < threshold_of(ThresholdRule.TWO_THIRDS, size) <= size * 2 / 3 + 1


@given(st.integers(1, 64), st.data())
def test_bitmap_of_members_is_read_back(size, data):
    members = frozenset(data.draw(st.sets(st.integers(0, size - 1))))
    assert members_of(bitmap_of(members, size), size) == members


@pytest.mark.parametrize(("bitmap", "size"), [(b"\x04", 2), (b"", 1), (b"\x01\x00", 8), (b"\x01", 9)])
def test_bitmap_that_does_not_fit_has_no_members(bitmap, size):
    assert members_of(bitmap, size) is None
