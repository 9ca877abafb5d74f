"""Masked groups against peers that send any valid messages: no crash, one answer, and a sum of the counted devices only."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.masking.group import MaskedGroup
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_context import request_digest
from fedpatch.shared.wire.masking_messages import Agreed, Agreement, Inbox, Reveal, Roster, Shares, Unmask
from tests.fuzz.effort import tries
from tests.shared.arbitrary_messages import of_message
from tests.support.masked_group import NAME, PlayedGroup, check_transcript, request_of, terms_of

SIZE = 4
ALL = frozenset(range(SIZE))
DIGEST = request_digest(NAME.task, NAME.run, NAME.round, request_of(terms_of(SIZE)))


def contexts(group: PlayedGroup) -> st.SearchStrategy[bytes]:
    """Return the group's own context, or another one."""
    return st.sampled_from([group.context, bytes(32)])


def codes() -> st.SearchStrategy[tuple[bytes, ...]]:
    """Return codes of any lengths, also one for each other member."""
    code = st.binary(max_size=80) | st.binary(min_size=32, max_size=32)
    return st.lists(code, max_size=2 * SIZE).map(tuple)


def to_device(group: PlayedGroup, index: int) -> st.SearchStrategy[object]:
    """Return messages of a coordinator that ignores the protocol: correct, changed or arbitrary ones."""
    honest = group.inbox_of(index, ALL)
    boxes = st.lists(st.binary(max_size=120) | st.sampled_from(honest.boxes), max_size=2 * SIZE).map(tuple)
    thresholds, members = st.integers(2, 64), st.permutations(group.roster.members).map(tuple)
    return st.one_of(
        st.sampled_from([group.roster, honest, group.unmask(ALL)]),
        st.builds(replace, st.just(group.roster), threshold=thresholds, members=members),
        st.builds(Inbox, contexts(group), boxes),
        st.builds(Unmask, contexts(group), st.binary(max_size=8), codes()),
        st.builds(Agreed, contexts(group), st.sampled_from([b"\x0e", b"\x0f"]), codes()),
        of_message(Roster),
        of_message(Inbox),
        of_message(Unmask),
        of_message(Agreed),
    )


@tries(60, deadline=None)
@given(st.data())
def test_device_answers_any_messages_once_or_not_at_all(data):
    group = PlayedGroup.of(SIZE)
    group.share()
    device = group.devices[1]
    for body in data.draw(st.lists(to_device(group, 1), max_size=12)):
        answer = device.take(body)
        assert answer.state is None or not answer.problem
    check_transcript([device], [group.group])


def to_coordinator(group: PlayedGroup, index: int) -> st.SearchStrategy[object]:
    """Return shares and reveals: correct, changed or arbitrary ones."""
    honest = group.shares[index]
    boxes = st.lists(st.binary(max_size=120), max_size=2 * SIZE).map(tuple)
    revealed = st.lists(st.binary(max_size=33) | st.binary(min_size=33, max_size=33), min_size=SIZE, max_size=SIZE)
    return st.one_of(
        st.just(honest),
        st.builds(Shares, contexts(group), boxes, st.binary(min_size=32, max_size=32)),
        st.builds(Reveal, contexts(group), st.just(b"\x0f"), revealed.map(tuple)),
        st.builds(Agreement, contexts(group), st.sampled_from([b"\x0e", b"\x0f"]), codes()),
        of_message(Shares),
        of_message(Reveal),
        of_message(Agreement),
    )


def take(group: MaskedGroup, name: str, body: object) -> None:
    """Pass a device's message on to the coordinator's group."""
    match body:
        case Shares():
            group.add_shares(name, body)
        case Agreement():
            group.add_agreement(name, body)
        case Reveal():
            group.add_reveal(name, body)
        case _:
            raise AssertionError(body)


@tries(40, deadline=None)
@given(st.data())
def test_coordinator_refuses_any_messages_of_a_device_and_opens_the_group_by_the_others(data):
    """Whatever one of four members sends in its turns, the other three open the group, or the group is lost."""
    played = PlayedGroup.of(SIZE)
    played.share()
    group = MaskedGroup(DIGEST, played.roster)
    hostile = st.lists(to_coordinator(played, 0), max_size=4)

    def send() -> None:
        for body in data.draw(hostile):
            try:
                take(group, "pi-00", body)
            except WireError:
                continue
            group.open()

    send()
    for index in range(1, SIZE):
        group.add_shares(played.devices[index].name, played.shares[index])
    group.end_sharing()
    for name in group.masking:
        played.devices[int(name.removeprefix("pi-"))].take(group.inbox(name))
    send()
    honest = [name for name in group.masking if name != "pi-00"]
    for name in honest:
        index = int(name.removeprefix("pi-"))
        played.vouch([index])
        group.add_codes(name, played.devices[index].state.codes)
    group.end_collecting(honest)
    group.begin_agreeing()
    send()
    for _ in range(2):
        for name in honest:
            asked = group.request(name)
            assert asked is not None
            take(group, name, played.devices[int(name.removeprefix("pi-"))].take(asked).body)
        group.open()
        send()
    group.end_unmasking()
    assert group.over
    assert group.offenders <= {"pi-00"}
