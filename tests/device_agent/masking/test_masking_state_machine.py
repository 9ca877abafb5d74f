"""A device's part in a masked group: its answers and refusals, and no contradictory messages."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fedpatch.device_agent.masking.masking_round import MaskingPhase, RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking import group_context
from fedpatch.shared.masking.group_context import MaskingGroup, bitmap_of, request_digest
from fedpatch.shared.wire.features import MASKING_VERSION
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    GroupMember,
    Inbox,
    MaskingKeys,
    Reveal,
    Roster,
    Shares,
    ThresholdRule,
    Unmask,
)
from fedpatch.shared.wire.privacy_messages import SKELLAM, PrivacyTerms
from tests.support.identities import Certified
from tests.support.masked_group import (
    NAME,
    Killed,
    MaskedDevice,
    PlayedGroup,
    check_transcript,
    request_of,
    terms_of,
)

SIZE = 5
ALL = frozenset(range(SIZE))
REQUEST = request_of(terms_of(SIZE))


def keyed(seed=0):
    return PlayedGroup.of(SIZE, seed)


def shared():
    group = keyed()
    group.share()
    return group


def ready():
    group = shared()
    group.distribute(ALL)
    return group


# ---- all phases


def test_device_goes_through_all_phases():
    group = keyed()
    device = group.devices[0]
    phases = [device.rounds.state.phase]
    group.share()
    phases.append(device.rounds.state.phase)
    group.distribute(ALL)
    phases.append(device.rounds.state.phase)
    agreements = group.agree(ALL, ALL)
    phases.append(device.rounds.state.phase)
    device.take(group.agreed(ALL, 0, agreements))
    assert [*phases, device.rounds.state.phase] == list(MaskingPhase)


def test_repeated_request_has_the_same_keys_also_after_a_restart():
    device = keyed().devices[0]
    keys = device.accept(REQUEST)
    device.reboot()
    assert device.accept(REQUEST) == keys


def test_roster_with_a_copied_key_gets_no_shares():
    """Colluders could have the masks of honest members: X25519 ignores the highest bit of a key."""
    group = keyed()
    victim, liar = group.roster.members[1], group.roster.members[4]
    copied = bytes([*victim.keys.mask[:31], victim.keys.mask[31] ^ 0x80])
    members = (*group.roster.members[:4], replace(liar, keys=replace(liar.keys, mask=copied)))
    assert "pi-01 and pi-04 have the same key" in refused(group.devices[0], replace(group.roster, members=members))
    assert group.devices[0].state.phase is MaskingPhase.KEYED


def test_each_request_and_round_has_new_keys():
    device = keyed().devices[0]
    keys = {device.accept(REQUEST), device.accept(request_of(terms_of(SIZE), "ac" * 32))}
    keys.add(device.accept(REQUEST, replace(NAME, round=2)))
    assert len({key.mask for key in keys}) == len({key.share for key in keys}) == 3


@pytest.mark.parametrize("reveals", [False, True])
def test_device_that_has_agreed_to_a_sum_takes_no_part_in_the_same_request_again(reveals):
    group = ready()
    if reveals:
        group.reveal(0, ALL)
    else:
        group.devices[0].take(group.unmask(ALL))
    group.devices[0].reboot()
    assert group.devices[0].rounds.begin(NAME, REQUEST) is None


ELSEWHERE = [
    (NAME, replace(REQUEST, private="all")),
    (replace(NAME, round=2), REQUEST),
    (replace(NAME, run="run-2"), replace(REQUEST, deadline_s=1.0, plan=replace(REQUEST.plan, seed=7))),
]


@pytest.mark.parametrize(("name", "request_"), ELSEWHERE)
def test_device_that_has_offered_an_update_makes_no_keys_for_another_round_from_the_same_base(name, request_):
    """Two sums from one base whose groups differ in one device would show its update."""
    device = ready().devices[0]
    assert device.rounds.note_update("0a" * 32) is not None
    for _ in range(2):
        assert device.rounds.begin(name, request_) is None
        device.reboot()
    moved = replace(request_, content="ed" * 32)
    assert device.rounds.begin(name, moved) is not None
    assert device.rounds.begin(NAME, REQUEST) is None, "a later base does not push an earlier one out"


def test_update_from_a_base_that_was_offered_meanwhile_is_not_sent():
    """The second line of defence, for keys that were made before the offer."""
    group = ready()
    group.devices[0].rounds.spent.add(REQUEST.content)
    assert group.devices[0].rounds.note_update("0a" * 32) is None


def test_offered_update_may_be_repeated_under_its_keys_after_a_restart():
    device = ready().devices[0]
    device.save(device.rounds.note_update("0a" * 32))
    device.reboot()
    assert device.rounds.begin(NAME, REQUEST) == device.state.keys
    assert device.rounds.note_update("0a" * 32) is not None
    assert device.rounds.note_update("0b" * 32) is None


def test_device_whose_record_of_bases_is_damaged_makes_no_keys():
    assert MaskingRounds("pi-00", random.Random(0).randbytes, offered=None).begin(NAME, REQUEST) is None


def test_secret_of_an_attempt_stays_with_its_keys_and_changes_with_them():
    device = keyed().devices[0]
    first = device.rounds.training_secret()
    device.reboot()
    assert device.rounds.training_secret() == first
    device.accept(REQUEST, replace(NAME, round=2))
    assert device.rounds.training_secret() not in (first, b"")
    assert MaskingRounds("pi-00", random.Random(0).randbytes).training_secret() == b""


def test_repeated_messages_have_the_same_answers_also_after_a_restart():
    group = ready()
    device = group.devices[0]
    shares = device.take(group.roster).body
    device.reboot()
    assert device.take(group.roster).body == shares
    agreements = group.agree(ALL, ALL)
    device.reboot()
    assert device.take(group.unmask(ALL)).body == agreements[0]
    reveal = device.take(group.agreed(ALL, 0, agreements)).body
    device.reboot()
    assert device.take(group.agreed(ALL, 0, agreements)).body == reveal
    assert device.take(group.unmask(ALL)).body == agreements[0]


def test_answer_whose_state_could_not_be_written_is_repeated_with_the_state():
    def repeated(body):
        with pytest.raises(Killed):
            device.take(body, die="write")
        return device.take(body)

    group = keyed()
    group.share(range(1, SIZE))
    device = group.devices[0]
    shares = repeated(group.roster)
    device.reboot()
    assert (shares.state, device.state.phase) == (device.state, MaskingPhase.SHARED)
    group.shares[0] = shares.body
    group.distribute(ALL)
    agreements = group.agree(ALL, range(1, SIZE))
    agreement = repeated(group.unmask(ALL))
    device.reboot()
    assert (agreement.state, device.state.phase) == (device.state, MaskingPhase.AGREED)
    reveal = repeated(group.agreed(ALL, 0, agreements))
    device.reboot()
    assert (reveal.state, device.state.phase) == (device.state, MaskingPhase.REVEALED)


def test_secrets_and_shares_of_other_sums_are_erased_before_the_agreement():
    """They are neither on disk nor in memory: a later owner of the device learns only the revealed shares."""
    group = ready()
    device = group.devices[0]
    state = device.state
    secrets = [state.secrets.share, state.secrets.mask, state.secrets.self_mask, *(pair[33:] for pair in state.inbox)]
    assert all(secret in device.disk for secret in secrets)
    device.take(group.unmask(ALL))
    assert not any(secret in device.disk for secret in secrets)
    assert (device.state.boxes, device.state.own_shares) == ((), b"")
    assert not device.rounds.is_ready
    assert "erased" in refused(device, group.roster)
    assert device.rounds.note_update("ab" * 32) is None


def test_forgotten_round_answers_nothing():
    group = ready()
    asked = group.unmask(ALL)
    group.devices[0].rounds.state = None
    assert group.devices[0].take(asked).problem


def test_reveal_has_one_share_of_each_member_of_the_masking_set():
    """A share of the self-mask if the member reported, else of the mask key; none for a member outside the masking set."""
    group = shared()
    masking = frozenset({0, 1, 2, 4})
    group.distribute(masking)
    inbox = group.devices[0].state.inbox
    reveal = group.reveal(0, frozenset({0, 1, 2}))
    assert [len(share) for share in reveal.shares] == [33, 33, 33, 0, 33]
    assert inbox[3] == b""
    assert (reveal.shares[1], reveal.shares[4]) == (inbox[1][:33], inbox[4][33:])
    check_transcript(group.devices, [group.group])


def test_reveal_in_a_group_of_more_than_eight_follows_all_bytes_of_the_bitmap():
    group = PlayedGroup.of(9)
    group.share()
    members = frozenset(range(9))
    group.distribute(members)
    inbox = group.devices[8].state.inbox
    assert inbox is not None
    assert group.reveals(members - {1}, [8])[8] == tuple(
        pair[33:] if index == 1 else pair[:33] for index, pair in enumerate(inbox)
    )


def test_group_of_the_least_size_of_the_terms_shares():
    group = PlayedGroup.of(2)
    group.share()
    assert [device.state.phase for device in group.devices] == [MaskingPhase.SHARED] * 2


def test_masks_are_those_of_the_pairs_of_the_masking_set_also_after_a_restart():
    group = shared()
    masking = frozenset({0, 1, 3, 4})
    group.distribute(masking)
    masks = [group.devices[index].rounds.masks() for index in sorted(masking)]
    own, pairs = {one[0].seed for one in masks}, [mask.seed for one in masks for mask in one[1:]]
    assert (len(own), len(pairs), len(set(pairs))) == (4, 12, 6)
    group.devices[0].reboot()
    assert group.devices[0].rounds.masks() == masks[0]


# ---- noise


def test_noise_of_as_many_devices_as_must_reveal_has_the_variance_of_the_terms():
    group, terms = ready(), PrivacyTerms(SKELLAM, 1.5, 1.0, 1e-5, SIZE, steps=40)
    noises = [device.rounds.noise(terms) for device in group.devices]
    assert [noise.variance for noise in noises] == [pytest.approx(60**2 / 3)] * SIZE
    assert len({noise.seed for noise in noises}) == SIZE


def test_noise_of_the_devices_without_colluders_has_the_variance_of_the_terms():
    """Seven of nine reveal, of which two may tell their noise to the coordinator: the five others have all of it."""
    group = PlayedGroup.of(9, terms=terms_of(9, threshold=ThresholdRule.TWO_THIRDS, colluders=2))
    group.share()
    group.distribute(frozenset(range(9)))
    terms = PrivacyTerms(SKELLAM, 1.5, 1.0, 1e-5, 9, steps=40)
    assert group.roster.threshold == 7
    assert group.devices[0].rounds.noise(terms).variance == pytest.approx(60**2 / 5)


def test_roster_of_a_group_that_does_not_withstand_the_colluders_of_the_terms_is_refused():
    group = PlayedGroup.of(9, terms=terms_of(9, threshold=ThresholdRule.TWO_THIRDS, colluders=5))
    assert "5 colluders are above the 4" in refused(group.devices[0], group.roster)


def test_noise_is_the_same_after_a_restart():
    device, terms = ready().devices[0], PrivacyTerms(SKELLAM, 1.5, 1.0, 1e-5, SIZE, steps=40)
    noise = device.rounds.noise(terms)
    device.reboot()
    assert device.rounds.noise(terms) == noise


def test_noise_of_the_same_secrets_differs_in_another_group():
    """A device that a rolled-back disk has given its old secrets again adds other noise beside other members."""
    seeds, terms = set(), PrivacyTerms(SKELLAM, 1.5, 1.0, 1e-5, SIZE, steps=40)
    for others in (0, 1):
        group = PlayedGroup.with_devices([MaskedDevice(f"pi-{at:02}", others if at else 0) for at in range(SIZE)])
        group.share()
        group.distribute(ALL)
        seeds.add(group.devices[0].rounds.noise(terms).seed)
    assert len(seeds) == 2


# ---- signed keys


STRICT = request_of(terms_of(3, strict=True, threshold=ThresholdRule.TWO_THIRDS))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Three devices with certificates."""
    return Certified(tmp_path_factory.mktemp("ca"), "kitchen").make("pi-00", "pi-01", "pi-02")


def signing(fleet, name):
    files = CertificateFiles.of(fleet.files(name), name, "kitchen", fleet.directory / name)
    return MaskingRounds(name, random.Random(name).randbytes, certificates=files)


def signed_roster(fleet, place=0):
    """The device at this place of three, with a roster of signed keys."""
    rounds = [signing(fleet, f"pi-{index:02}") for index in range(3)]
    members = [GroupMember(f"pi-{index:02}", one.begin(NAME, STRICT)) for index, one in enumerate(rounds)]
    return rounds[place], Roster(0, 3, tuple(members))


def test_device_shares_with_members_whose_keys_are_signed(fleet):
    rounds, roster = signed_roster(fleet)
    assert isinstance(rounds.handle(NAME, roster).body, Shares)


@pytest.mark.parametrize(("own", "place"), [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])
def test_roster_with_a_member_whose_keys_are_not_signed_is_refused(fleet, own, place):
    rounds, roster = signed_roster(fleet, own)
    members = list(roster.members)
    members[place] = replace(members[place], keys=replace(members[place].keys, signature=b""))
    answer = rounds.handle(NAME, replace(roster, members=tuple(members)))
    assert answer.body is None
    assert f"pi-{place:02} are not signed" in answer.problem


def test_roster_with_a_member_of_another_version_of_masking_is_refused(fleet, monkeypatch):
    """A coordinator that lies may mix versions; the member's signature names its own."""
    rounds, roster = signed_roster(fleet)
    monkeypatch.setattr(group_context, "MASKING_VERSION", MASKING_VERSION - 1)
    other = GroupMember("pi-02", signing(fleet, "pi-02").begin(NAME, STRICT))
    monkeypatch.undo()
    answer = rounds.handle(NAME, replace(roster, members=(*roster.members[:2], other)))
    assert answer.body is None
    assert "the signature of pi-02 is not one of these keys in this round" in answer.problem
    assert rounds.state.phase is MaskingPhase.KEYED


def test_device_without_a_certificate_begins_no_round_of_signed_keys():
    rounds = MaskingRounds("pi-00", random.Random(0).randbytes)
    with pytest.raises(WireError, match="no certificate"):
        rounds.begin(NAME, STRICT)
    assert rounds.state is None


# ---- refused messages


def refused(device, body, name=NAME):
    """Check that a message gets no answer and changes nothing; return its problem."""
    before = device.rounds.state
    answer = device.take(body, name)
    assert (answer.body, answer.state, device.rounds.state) == (None, None, before)
    return answer.problem


def other_keys():
    return MaskingKeys(b"\x09" + bytes(31), b"\x09" + bytes(31))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda roster: replace(roster, members=roster.members[1:]), "does not name pi-00"),
        (
            lambda roster: replace(roster, members=(GroupMember("pi-00", other_keys()), *roster.members[1:])),
            "other keys",
        ),
        (lambda roster: replace(roster, members=(*roster.members[:1], *roster.members)), "distinct and sorted"),
        (lambda roster: replace(roster, members=roster.members[::-1]), "distinct and sorted"),
        (lambda roster: replace(roster, threshold=2), "threshold of 2 is not that of the terms, 3"),
        (lambda roster: replace(roster, threshold=5), "threshold of 5 is not that of the terms, 3"),
        (lambda roster: replace(roster, members=roster.members[:1]), "group of 1 is outside the terms"),
        (
            lambda roster: replace(roster, members=(*roster.members, GroupMember("pi-99", other_keys())), threshold=4),
            "group of 6 is outside the terms",
        ),
        (
            lambda roster: replace(
                roster, members=(*roster.members[:4], GroupMember("pi-04", MaskingKeys(bytes(32), bytes(32))))
            ),
            "not a usable X25519 key",
        ),
    ],
)
def test_roster_outside_the_terms_is_refused_by_name(change, words):
    group = keyed()
    assert words in refused(group.devices[0], change(group.roster))


def test_second_roster_for_the_same_keys_is_refused():
    """A device in two groups would reveal shares to both."""
    group = shared()
    other = replace(group.roster, group=1)
    assert "second roster" in refused(group.devices[0], other)


@pytest.mark.parametrize("name", [replace(NAME, round=2), replace(NAME, run="other"), replace(NAME, task="other")])
def test_message_of_another_round_is_refused(name):
    group = ready()
    for body in (group.roster, group.inbox_of(0, ALL), group.unmask(ALL)):
        assert "no keys for round" in refused(group.devices[0], body, name)


def test_messages_before_their_time_are_refused():
    group = keyed()
    assert "before its roster" in refused(group.devices[0], Inbox(bytes(32), ()))
    assert "before its roster" in refused(group.devices[0], Unmask(bytes(32), b"\x1f"))
    group.share()
    assert "before the masking set" in refused(group.devices[0], Unmask(group.context, b"\x1f"))
    group.distribute(ALL)
    assert "another sum" in refused(group.devices[0], Agreed(group.context, b"\x1f", (b"",) * SIZE))


def test_messages_of_another_group_are_refused():
    group = ready()
    assert "another group" in refused(group.devices[0], replace(group.inbox_of(0, ALL), context=bytes(32)))
    assert "another group" in refused(group.devices[0], replace(group.unmask(ALL), context=bytes(32)))


def test_inbox_that_does_not_fit_the_group_is_refused():
    group = shared()
    whole = group.inbox_of(0, ALL)
    for boxes in (whole.boxes[1:], (*whole.boxes, b"x"), (b"own", *whole.boxes[1:]), ()):
        assert "does not fit the group" in refused(group.devices[0], replace(whole, boxes=boxes))


def test_masking_set_below_the_threshold_is_refused():
    group = shared()
    assert "below the threshold" in refused(group.devices[0], group.inbox_of(0, frozenset({0, 1})))


def test_second_inbox_with_another_masking_set_is_refused():
    group = ready()
    assert "another masking set" in refused(group.devices[0], group.inbox_of(0, frozenset({0, 1, 2})))
    assert refused(group.devices[0], group.inbox_of(0, ALL)) == ""


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (b"\x03", "below the threshold"),
        (b"\x00", "below the threshold"),
        (b"\x3f", "not a part of the masking set"),
        (b"\x1f\x00", "not a part of the masking set"),
        (b"", "not a part of the masking set"),
    ],
)
def test_impossible_set_of_reported_members_is_refused(reported, words):
    group = ready()
    group.vouch(ALL)
    assert words in refused(group.devices[0], Unmask(group.context, reported))


def test_member_outside_the_masking_set_is_no_reported_member():
    group = shared()
    group.distribute(frozenset({0, 1, 2}))
    assert "not a part" in refused(group.devices[0], Unmask(group.context, b"\x0f"))


def test_second_set_of_reported_members_is_refused_also_after_a_restart():
    group = ready()
    device = group.devices[0]
    device.take(group.unmask(ALL))
    assert "second, different set" in refused(device, group.unmask(ALL - {4}))
    device.reboot()
    assert "second, different set" in refused(device, group.unmask(ALL - {4}))


def test_second_masked_update_under_the_same_keys_is_not_sent():
    group = ready()
    rounds = group.devices[0].rounds
    assert rounds.note_update("ab" * 32) is not None
    assert rounds.note_update("ab" * 32) is not None
    assert rounds.note_update("cd" * 32) is None


def test_update_before_the_masking_set_is_known_is_not_sent():
    assert MaskingRounds("pi-00", random.Random(0).randbytes).note_update("ab" * 32) is None
    assert shared().devices[0].rounds.note_update("ab" * 32) is None


@pytest.mark.parametrize(("model", "version"), [("ac" * 32, MASKING_VERSION), ("ab" * 32, MASKING_VERSION - 1)])
def test_device_whose_request_or_version_differs_shares_nothing_with_its_group(monkeypatch, model, version):
    """Its context differs, so neither its boxes nor the boxes for it can be opened."""
    group = keyed()
    stranger = MaskedDevice("pi-00", seed=9)
    with monkeypatch.context() as patched:
        patched.setattr(group_context, "MASKING_VERSION", version)
        keys = stranger.accept(request_of(terms_of(SIZE), model))
    members = (GroupMember("pi-00", keys), *group.roster.members[1:])
    roster = replace(group.roster, members=members)
    shares = stranger.share(roster)
    theirs = [device.share(roster) for device in group.devices[1:]]
    assert {one.context for one in theirs}.isdisjoint({shares.context})
    inbox = Inbox(theirs[0].context, (shares.boxes[1], b"", *(one.boxes[1] for one in theirs[1:])))
    group.devices[1].take(inbox)
    assert group.devices[1].rounds.state.inbox[0] == b""


# ---- agreement


def test_sum_is_refused_while_a_reported_member_vouches_for_another_masking_set():
    """The coordinator sent member 4 another inbox. Members with other sets would open the sum of the few that have one."""
    group = shared()
    for index in range(4):
        group.devices[index].take(group.inbox_of(index, ALL))
    group.devices[4].take(group.inbox_of(4, frozenset({0, 1, 4})))
    assert "1 reported members, such as pi-04, do not vouch" in refused(group.devices[0], group.unmask(ALL))
    assert group.devices[0].state.phase is MaskingPhase.READY
    assert group.agree(ALL - {4}, range(4)).keys() == set(range(4))


@pytest.mark.parametrize("count", [0, 1])
def test_device_reveals_nothing_before_as_many_members_as_the_threshold_agree(count):
    """The device itself is one of them; codes over another sum, or for another member, do not count."""
    group = ready()
    group.vouch(ALL)
    agreements = group.agree(ALL, range(count + 1))
    assert "agree to this sum, below the threshold of 3" in refused(group.devices[0], group.agreed(ALL, 0, agreements))
    others = group.agree(ALL - {0}, {3, 4})
    mixed = group.agreed(ALL, 0, agreements | others)
    assert f"{count + 1} members agree" in refused(group.devices[0], mixed)
    elsewhere = group.agreed(ALL, 1, group.agree(ALL, range(3)))
    assert "agree to this sum" in refused(group.devices[0], elsewhere)
    assert isinstance(group.devices[0].take(group.agreed(ALL, 0, group.agree(ALL, range(3)))).body, Reveal)


def test_device_that_has_offered_nothing_is_in_no_sum():
    group = ready()
    group.vouch(ALL - {0})
    asked = Unmask(group.context, b"\x1f", (b"", *(device.state.codes[0] for device in group.devices[1:])))
    assert "offered no update" in refused(group.devices[0], asked)


def test_device_that_has_offered_nothing_agrees_to_the_sum_of_the_others():
    group = ready()
    group.vouch(ALL - {0})
    answer = group.devices[0].take(unmask_of(group, ALL - {0}, 0))
    assert (type(answer.body), answer.body.reported) == (Agreement, bitmap_of(ALL - {0}, SIZE))


def test_request_for_the_shares_of_another_sum_than_the_agreed_one_is_refused_whatever_its_codes():
    group = ready()
    agreed = group.agreed(ALL, 0, group.agree(ALL, ALL))
    other = replace(agreed, reported=bitmap_of(ALL - {4}, SIZE))
    assert "another sum than this device" in refused(group.devices[0], other)
    assert isinstance(group.devices[0].take(agreed).body, Reveal)


def test_code_of_the_offer_is_none_of_the_agreement():
    """Each step and each direction has a key of its own."""
    group = ready()
    agreements = group.agree(ALL, ALL)
    codes = [code for device in group.devices for code in device.state.codes if code]
    codes += [code for agreement in agreements.values() for code in agreement.codes if code]
    assert len(set(codes)) == len(codes) == 2 * SIZE * (SIZE - 1)
    early = Agreed(
        group.context, b"\x1f", tuple(device.state.codes[0] if device.state.codes else b"" for device in group.devices)
    )
    assert "1 members agree" in refused(group.devices[0], early)


def strict_group(fleet):
    """Three devices that sign, each with its inbox."""
    rounds = [signing(fleet, f"pi-{index:02}") for index in range(3)]
    members = tuple(GroupMember(f"pi-{index:02}", one.begin(NAME, STRICT)) for index, one in enumerate(rounds))
    roster = Roster(0, 3, members)
    shares = [one.handle(NAME, roster).body for one in rounds]
    for index, one in enumerate(rounds):
        boxes = tuple(sent.boxes[index] if place != index else b"" for place, sent in enumerate(shares))
        one.handle(NAME, Inbox(shares[0].context, boxes))
    return rounds, shares[0].context


def test_members_of_a_strict_group_sign_what_they_agree_to(fleet):
    rounds, context = strict_group(fleet)
    signed = tuple(one.note_update(f"{index:064x}").codes[0] for index, one in enumerate(rounds))
    forged = (signed[0], signed[0], signed[2])
    assert "such as pi-01, do not vouch" in rounds[0].handle(NAME, Unmask(context, b"\x07", forged)).problem
    agreements = [one.handle(NAME, Unmask(context, b"\x07", signed)).body for one in rounds]
    codes = tuple(one.codes[0] for one in agreements)
    assert len({*signed, *codes}) == 6
    assert [one.state.expected for one in rounds] == [()] * 3, "signatures are checked without codes"
    assert "1 members agree" in rounds[0].handle(NAME, Agreed(context, b"\x07", signed)).problem
    assert isinstance(rounds[0].handle(NAME, Agreed(context, b"\x07", codes)).body, Reveal)


# ---- one answer, for any messages and kills


def unmask_of(group, reported, index):
    """A request for an agreement, with the codes that the reported members have made so far."""
    codes = [group.devices[one].state.codes if one in reported else () for one in range(SIZE)]
    return Unmask(group.context, bitmap_of(reported, SIZE), tuple(one[index] if one else b"" for one in codes))


def agreed_of(group, reported, index):
    """A request for a reveal, with the codes of all agreements to this sum so far."""
    bitmap = bitmap_of(reported, SIZE)
    states = [device.state for device in group.devices]
    codes = tuple(one.agreement[index] if one.reported == bitmap else b"" for one in states)
    return Agreed(group.context, bitmap, codes)


def contradictory(group, random_):
    """A random message of a coordinator that follows no protocol: a roster, an inbox or a set, in any order."""
    size = len(group.devices)
    some = frozenset(random_.sample(range(size), random_.randint(2, size)))
    masking = frozenset(random_.sample(range(size), random_.randint(3, size)))
    index = random_.randrange(size)
    return random_.choice(
        [
            (index, group.roster),
            (index, replace(group.roster, group=1)),
            (index, group.inbox_of(index, masking | {index})),
            (index, group.inbox_of(index, ALL)),
            (index, Unmask(group.context, bitmap_of(some, size))),
            (index, unmask_of(group, some, index)),
            (index, unmask_of(group, ALL, index)),
            (index, agreed_of(group, some, index)),
            (index, agreed_of(group, ALL, index)),
        ]
    )


@pytest.mark.medium
@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_no_device_gives_both_kinds_of_share_under_any_faults(first_seed):
    """200 schedules of contradictory messages, repeats, kills before each write and send, reboots and two epochs."""
    for seed in range(first_seed, first_seed + 20):
        random_ = random.Random(seed)
        group = keyed(seed)
        group.share()
        groups = [group.group]
        for _ in range(60):
            index, body = contradictory(group, random_)
            device = group.devices[index]
            try:
                device.take(body, die=random_.choice(["", "", "write", "send"]))
            except Killed:
                device.reboot()
            if random_.random() < 0.3 and device.rounds.is_ready:
                group.vouch([index])
            if random_.random() < 0.1:
                device.reboot()
            if random_.random() < 0.05:  # a newer epoch asks for the same work
                device.rounds.begin(NAME, REQUEST)
        check_transcript(group.devices, groups)


def test_transcript_check_finds_both_kinds_of_share():
    """The check itself detects a device that forgets its answer."""
    group = ready()
    device = group.devices[0]
    group.vouch(ALL)
    before = [one.rounds.state for one in group.devices]
    group.reveal(0, ALL)
    for one, state in zip(group.devices, before, strict=True):
        one.rounds.state = state
    group.reveal(0, ALL - {4})
    device.sent = [one for one in device.sent if not isinstance(one, Agreement)]
    with pytest.raises(AssertionError, match="two sums of a group"):
        check_transcript(group.devices, [group.group])


def test_machine_without_a_round_answers_nothing():
    rounds = MaskingRounds("pi-00", random.Random(0).randbytes)
    answer = rounds.handle(NAME, Unmask(bytes(32), b"\x01"))
    assert (answer.state, answer.body) == (None, None)
    assert not rounds.is_ready


def test_messages_have_one_entry_for_each_member():
    group = ready()
    shares = group.shares[0]
    reveal = group.reveal(0, ALL)
    assert isinstance(shares, Shares)
    assert len(reveal.shares) == SIZE
    assert [bool(box) for box in shares.boxes] == [False, *[True] * (SIZE - 1)]
    digest = request_digest(NAME.task, NAME.run, NAME.round, REQUEST)
    assert shares.context == MaskingGroup.of_roster(digest, Roster(0, 3, group.roster.members)).context
    assert RoundName(NAME.task, NAME.run, NAME.round) == NAME
