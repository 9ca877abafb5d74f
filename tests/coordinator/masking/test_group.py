"""One group as a state machine: the messages that change it, and the conditions under which it is opened or lost."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.masking.group import GroupState, MaskedGroup
from fedpatch.device_agent.masking.masking_round import RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.shared.errors import IllegalTransition, WireError
from fedpatch.shared.masking.group_context import request_digest
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.masking.masked_blob import add_masks
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    GroupMember,
    Reveal,
    Roster,
    SecureTerms,
    Shares,
    ThresholdRule,
    Unmask,
)
from fedpatch.shared.wire.messages import WorkRequest
from tests.support.examples import examples
from tests.support.specs import model, run_spec

ROUND = RoundName("digits", "run-1", 1)
VALUES = 50


def request(size: int, rule: ThresholdRule) -> WorkRequest:
    spec = run_spec()
    terms = SecureTerms(rule, 2, size, 8, 1, bytes(16), 1.0, 10, np.float32(1.0).tobytes())
    return WorkRequest(
        spec.schema, "affine", spec.plan, model(), "masked-u8", 100, 60.0, secure=terms, content="ec" * 32
    )


class Members:
    """A group and its devices, which answer with their own state machines."""

    def __init__(self, size: int = 8, rule: ThresholdRule = ThresholdRule.HALF) -> None:
        self.rounds = {name: MaskingRounds(name, random.Random(name).randbytes) for name in names(size)}
        asked = request(size, rule)
        members = []
        for name, one in sorted(self.rounds.items()):
            keys = one.begin(ROUND, asked)
            assert keys is not None
            members.append(GroupMember(name, keys))
        digest = request_digest(ROUND.task, ROUND.run, ROUND.round, asked)
        self.group = MaskedGroup(digest, Roster(0, threshold_of(rule, size), tuple(members)))
        self.vectors = {
            name: np.random.default_rng(at).integers(0, 256, VALUES, np.uint8) for at, name in enumerate(self.rounds)
        }

    def shares(self, name: str) -> Shares:
        body = self.rounds[name].handle(ROUND, self.group.roster).body
        assert isinstance(body, Shares)
        return body

    def vouch(self, vouching: Collection[str]) -> None:
        """Let members of the masking set offer an update, with their codes over this set."""
        for name in vouching:
            if name in self.group.masking:
                state = self.rounds[name].note_update(name.encode().hex().rjust(64, "0"))
                assert state is not None
                self.group.add_codes(name, state.codes)

    def collect(self, committed: Collection[str]) -> None:
        """Commit the updates of these members, and fix the reported set."""
        self.vouch(committed)
        self.group.end_collecting(committed)
        if self.group.state is GroupState.COLLECTED:
            self.group.begin_agreeing()

    def agreement(self, name: str) -> Agreement:
        asked = self.group.request(name)
        assert isinstance(asked, Unmask)
        body = self.rounds[name].handle(ROUND, asked).body
        assert isinstance(body, Agreement)
        return body

    def agree(self) -> None:
        """Let all members of the masking set agree."""
        agreements = {name: self.agreement(name) for name in self.group.masking}
        for name, agreement in agreements.items():
            assert self.group.add_agreement(name, agreement)

    def reveal(self, name: str) -> Reveal:
        if not self.group.agreements:
            self.agree()
        asked = self.group.request(name)
        assert isinstance(asked, Agreed)
        body = self.rounds[name].handle(ROUND, asked).body
        assert isinstance(body, Reveal)
        return body

    def share(self, sharing: Collection[str]) -> Members:
        """Let these members send their shares; the members of the masking set get their inbox."""
        for name in sharing:
            assert self.group.add_shares(name, self.shares(name))
        self.group.end_sharing()
        for name in self.group.masking if self.group.state is GroupState.SHARED else ():
            self.rounds[name].handle(ROUND, self.group.inbox(name))
        return self

    def revealed(self, count: int, wrong: Collection[str]) -> MaskedGroup:
        """Commit all updates; then the first `count` members reveal one after another, some of them wrong shares."""
        self.collect(list(self.rounds))
        for name in names(count):
            reveal = self.reveal(name)
            zeros = replace(reveal, shares=tuple(bytes(len(share)) for share in reveal.shares))
            self.group.add_reveal(name, zeros if name in wrong else reveal)
            self.group.open()
        return self.group

    def masked(self, name: str) -> np.ndarray:
        return add_masks(self.vectors[name], self.rounds[name].masks())


def names(size: int) -> list[str]:
    return [f"pi-{number:02}" for number in range(size)]


def some(size: int) -> st.SearchStrategy[set[str]]:
    return st.sets(st.sampled_from(names(size)))


def most(size: int) -> st.SearchStrategy[set[str]]:
    """Draw all members except a few."""
    return st.sets(st.sampled_from(names(size)), max_size=size // 4).map(lambda lost: set(names(size)) - lost)


@examples(60)
@given(st.data(), st.integers(2, 12), st.sampled_from(ThresholdRule))
def test_sum_is_that_of_the_reported_members_iff_enough_stay(data, size, rule):
    """This holds for any members that share, upload and reveal, in any order."""
    members = Members(size, rule)
    group, threshold = members.group, threshold_of(rule, size)
    members.share(data.draw(some(size) | most(size)))
    if len(group.masking) < threshold:
        assert group.state is GroupState.LOST
        return
    members.collect(data.draw(some(size) | most(size)))
    if len(group.reported) < threshold:
        assert group.state is GroupState.LOST
        return
    revealing = data.draw(st.permutations(sorted(data.draw(most(size)) & set(group.masking))))
    masked = {name: members.masked(name).astype(np.int64) for name in group.reported}
    reveals = {name: members.reveal(name) for name in revealing}
    if not revealing:
        members.agree()
    for count, name in enumerate(revealing, 1):
        assert group.add_reveal(name, reveals[name]) == (count <= threshold)
        group.open()
        assert group.state is (GroupState.OPEN if count >= threshold else GroupState.UNMASKING)
    group.end_unmasking()
    if len(revealing) < threshold:
        assert group.state is GroupState.LOST
        return
    opened = group.result()
    total = np.sum([masked[name] for name in opened.devices], axis=0).astype(np.uint8)
    expected = np.sum([members.vectors[name].astype(np.int64) for name in group.reported], axis=0) % 256
    assert (add_masks(total, opened.masks) == expected).all()
    assert group.offenders == frozenset()


@pytest.mark.parametrize(("rule", "threshold"), [(ThresholdRule.HALF, 5), (ThresholdRule.TWO_THIRDS, 6)])
class TestThreshold:
    """A group of eight continues with as many members as the threshold, and is lost with one fewer."""

    def test_of_shares(self, rule, threshold):
        assert Members(8, rule).share(names(threshold)).group.state is GroupState.SHARED
        assert Members(8, rule).share(names(threshold - 1)).group.state is GroupState.LOST

    def test_of_updates(self, rule, threshold):
        for count, state in ((threshold, GroupState.COLLECTED), (threshold - 1, GroupState.LOST)):
            members = Members(8, rule).share(names(8))
            members.vouch(names(8))
            members.group.end_collecting(names(count))
            assert members.group.state is state

    def test_of_agreements(self, rule, threshold):
        members = Members(8, rule).share(names(8))
        members.collect(names(8))
        agreements = {name: members.agreement(name) for name in names(8)}
        for count, name in enumerate(names(8), 1):
            members.group.add_agreement(name, agreements[name])
            assert members.group.state is (GroupState.UNMASKING if count >= threshold else GroupState.AGREEING)


class TestMessages:
    def test_shares_of_another_context_raise_and_change_nothing(self):
        members = Members()
        with pytest.raises(WireError, match="another"):
            members.group.add_shares("pi-00", replace(members.shares("pi-00"), context=bytes(32)))
        assert members.group.shares == {}

    @pytest.mark.parametrize("boxes", [(), (b"x",) * 7, (b"x",) * 8, (b"",) * 8])
    def test_shares_that_are_not_one_box_for_each_other_member_raise(self, boxes):
        members = Members()
        with pytest.raises(WireError, match="boxes"):
            members.group.add_shares("pi-00", replace(members.shares("pi-00"), boxes=boxes))

    def test_second_shares_of_a_member_change_nothing(self):
        members = Members()
        first = members.shares("pi-00")
        assert members.group.add_shares("pi-00", first)
        assert not members.group.add_shares("pi-00", replace(first, commitment=bytes(32)))
        assert members.group.shares["pi-00"] == first

    def test_shares_after_the_masking_set_is_fixed_change_nothing(self):
        members = Members().share(names(7))
        assert not members.group.add_shares("pi-07", members.shares("pi-07"))
        assert "pi-07" not in members.group.masking

    def test_reveal_for_another_reported_set_raises(self):
        members = Members().share(names(8))
        members.collect(names(6))
        reveal = members.reveal("pi-00")
        with pytest.raises(WireError, match="another set"):
            members.group.add_reveal("pi-00", replace(reveal, reported=b"\xff"))

    def test_reveal_with_another_number_of_shares_raises(self):
        members = Members().share(names(8))
        members.collect(names(6))
        with pytest.raises(WireError, match="7 shares"):
            members.group.add_reveal("pi-00", replace(members.reveal("pi-00"), shares=(b"",) * 7))

    def test_reveal_of_a_member_outside_the_masking_set_changes_nothing(self):
        members = Members().share(names(7))
        members.collect(names(7))
        reveal = members.reveal("pi-00")
        assert not members.group.add_reveal("pi-07", reveal)
        assert members.group.reveals == {}

    def test_wrong_shares_name_their_sender_and_others_open_the_group(self):
        group = Members().share(names(8)).revealed(6, wrong={"pi-02"})
        assert (group.state, group.offenders) == (GroupState.OPEN, frozenset({"pi-02"}))

    def test_group_with_too_few_right_shares_stays_closed(self):
        group = Members().share(names(8)).revealed(8, wrong=set(names(4)))
        assert not group.over
        group.end_unmasking()
        assert group.state is GroupState.LOST

    def test_end_of_unmasking_searches_once_more_where_the_last_reveal_started_no_search(self):
        """Ten reveals, seven right ones, threshold seven: a search follows the 7th, 8th and 9th reveal, then the 11th."""
        group = Members(12).share(names(12)).revealed(10, wrong=set(names(3)))
        assert not group.over
        group.end_unmasking()
        assert group.state is GroupState.OPEN

    def test_reveal_of_the_last_member_starts_a_search(self):
        """Eight reveals, five right ones, threshold five: a search follows the 5th, 6th and 7th reveal, then the last one."""
        group = Members().share(names(8)).revealed(8, wrong=set(names(3)))
        assert (group.state, group.offenders) == (GroupState.OPEN, frozenset(names(3)))


class TestAgreement:
    def test_update_without_codes_over_the_masking_set_is_in_no_sum(self):
        members = Members().share(names(8))
        members.vouch(names(7))
        members.group.end_collecting(names(8))
        assert members.group.reported == tuple(names(7))

    @pytest.mark.parametrize("codes", [(), (b"x" * 32,) * 8, (b"",) * 8, (b"x" * 32,) * 7])
    def test_codes_that_are_not_one_for_each_other_member_of_the_masking_set_raise(self, codes):
        members = Members().share(names(7))
        with pytest.raises(WireError, match="codes to a group of 8"):
            members.group.add_codes("pi-00", codes)
        assert members.group.codes == {}

    def test_codes_of_a_member_outside_the_masking_set_change_nothing(self):
        members = Members().share(names(7))
        assert not members.group.add_codes("pi-07", (b"x" * 32,) * 8)
        assert members.group.codes == {}

    def test_second_codes_of_a_member_change_nothing(self):
        members = Members().share(names(8))
        first, other = (members.rounds[name].note_update("ab" * 32) for name in ("pi-00", "pi-01"))
        assert first is not None and other is not None
        assert members.group.add_codes("pi-00", first.codes)
        assert not members.group.add_codes("pi-00", other.codes)
        assert members.group.codes == {"pi-00": first.codes}

    def test_codes_after_collecting_change_nothing(self):
        members = Members().share(names(8))
        members.collect(names(7))
        state = members.rounds["pi-07"].note_update("ab" * 32)
        assert state is not None
        assert not members.group.add_codes("pi-07", state.codes)
        assert "pi-07" not in members.group.codes

    def test_second_agreement_of_a_member_changes_nothing(self):
        members = Members().share(names(8))
        members.collect(names(8))
        first, other = members.agreement("pi-00"), members.agreement("pi-01")
        assert members.group.add_agreement("pi-00", first)
        assert not members.group.add_agreement("pi-00", replace(first, codes=other.codes))
        assert members.group.agreements == {"pi-00": first.codes}

    def test_agreement_of_a_member_outside_the_masking_set_changes_nothing(self):
        members = Members().share(names(7))
        members.collect(names(7))
        assert not members.group.add_agreement("pi-07", members.agreement("pi-00"))
        assert members.group.agreements == {}

    @pytest.mark.parametrize("lost", [False, True], ids=["not asked yet", "lost meanwhile"])
    def test_agreement_that_is_not_asked_for_changes_nothing(self, lost):
        members, other = (Members().share(names(8)) for _ in range(2))
        other.collect(names(8))
        members.vouch(names(8))
        members.group.end_collecting(names(8))
        if lost:
            members.group.lose()
        before = members.group.state
        assert not members.group.add_agreement("pi-00", other.agreement("pi-00"))
        assert (members.group.state, members.group.agreements) == (before, {})

    def test_member_that_did_not_report_has_no_code_in_the_messages_of_the_others(self):
        members = Members().share(names(8))
        members.collect(names(6))
        asked = members.group.request("pi-00")
        assert isinstance(asked, Unmask)
        assert [len(code) for code in asked.codes] == [0, *[32] * 5, 0, 0]

    def test_members_outside_the_masking_set_and_of_a_group_that_collects_are_asked_nothing(self):
        members = Members().share(names(7))
        assert members.group.request("pi-00") is None
        members.collect(names(7))
        assert isinstance(members.group.request("pi-00"), Unmask)
        assert members.group.request("pi-07") is None

    def test_agreement_to_another_sum_raises(self):
        members = Members().share(names(8))
        members.collect(names(6))
        with pytest.raises(WireError, match="agrees to another set"):
            members.group.add_agreement("pi-00", replace(members.agreement("pi-00"), reported=b"\xff"))

    def test_member_is_asked_for_its_agreement_first_and_then_for_its_shares(self):
        members = Members().share(names(8))
        members.collect(names(8))
        group = members.group
        assert isinstance(group.request("pi-00"), Unmask)
        for name in names(4):
            group.add_agreement(name, members.agreement(name))
            assert group.request(name) is None
        group.add_agreement("pi-04", members.agreement("pi-04"))
        assert isinstance(group.request("pi-00"), Agreed)
        assert isinstance(group.request("pi-07"), Unmask)
        group.add_reveal("pi-00", members.reveal("pi-00"))
        assert group.request("pi-00") is None

    def test_false_code_of_a_member_costs_its_agreement_alone(self):
        """Six agree, one of them with a false code for each other member: the five others are as many as the threshold."""
        members = Members().share(names(8))
        members.collect(names(8))
        for name in names(6):
            agreement = members.agreement(name)
            false = tuple(bytes(len(code)) for code in agreement.codes)
            members.group.add_agreement(name, replace(agreement, codes=false) if name == "pi-03" else agreement)
        assert isinstance(members.reveal("pi-00"), Reveal)


class TestInbox:
    def test_inbox_has_the_boxes_of_the_other_members_of_the_masking_set(self):
        group = Members().share(names(6)).group
        sent = [group.shares[name].boxes[1] if name in group.masking else b"" for name in group.members]
        assert group.inbox("pi-01").boxes == tuple(sent)
        assert [bool(box) for box in sent] == [True, False, *[True] * 4, False, False]


class TestCalls:
    def test_lost_group_stays_lost_also_with_enough_reveals(self):
        members = Members().share(names(8))
        group = members.revealed(5, wrong={"pi-00"})
        group.add_reveal("pi-05", members.reveal("pi-05"))
        group.lose()
        group.open(last=True)
        assert group.state is GroupState.LOST

    @pytest.mark.parametrize("call", ["end_sharing", "begin_agreeing", "result"])
    def test_call_out_of_order_raises_with_its_name_and_the_state(self, call):
        group = Members().share(names(8)).group
        with pytest.raises(IllegalTransition, match=f": {call} in shared, needs "):
            getattr(group, call)()

    def test_group_that_still_shares_keys_when_collecting_ends_is_lost(self):
        members = Members()
        members.group.end_collecting(names(8))
        assert members.group.state is GroupState.LOST

    def test_group_that_ends_while_it_agrees_names_the_members_without_an_agreement(self):
        members = Members().share(names(7))
        members.collect(names(7))
        for name in names(3):
            members.group.add_agreement(name, members.agreement(name))
        members.group.end_unmasking()
        assert (members.group.state, members.group.silent) == (GroupState.LOST, frozenset(names(7)[3:]))

    def test_group_that_ends_while_it_unmasks_names_the_members_without_a_reveal(self):
        members = Members().share(names(7))
        group = members.revealed(2, wrong=())
        group.end_unmasking()
        assert (group.state, group.silent) == (GroupState.LOST, frozenset(names(7)[2:]))
