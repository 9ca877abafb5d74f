"""Attacks of a lying coordinator on one device, with real agents, a broker that it reads, and colluding members.

Each test plays a row of the table in docs/explanation/threat-model.md. The adversary has the whole transcript, the reveals and
the colluders' secrets; tests.attacks.learned computes every sum that these open. A true vector is read from the disk of its
device, for the comparison alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.keys import SecretKeys
from fedpatch.shared.tensors.arrays import Array, values_digest
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire.masking_messages import Agreed, GroupMember, Inbox, Roster, Unmask
from fedpatch.shared.wire.messages import (
    Accept,
    Decline,
    DeviceState,
    Evaluation,
    ModelDelta,
    Offer,
    Progress,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.attacks.learned import Learned, Names, closest, correlation, signed, trained
from tests.attacks.lying_coordinator import LyingCoordinator, LyingRound, base_of, lying_fleet
from tests.system.commands import wait_for

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

VICTIM, OTHERS = "pi-0", ("pi-1", "pi-2", "pi-3")
ALL = (VICTIM, *OTHERS)
COLLUDERS = ("zz-1", "zz-2")
"""Two of six members, of which five must reveal: the law allows three."""
EVERYBODY = frozenset((*ALL, *COLLUDERS))
HIDDEN = 0.35
"""Correlation of two unrelated vectors of the small model at most: five standard deviations."""


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingCoordinator]:
    """Four agents whose owners require masks, and two colluders, at a broker without rules."""
    with lying_fleet(tmp_path_factory.mktemp("lies"), ALL, COLLUDERS) as liar:
        yield liar


def begun(liar: LyingCoordinator, salt: str, **changes: Any) -> LyingRound:
    return liar.round(base_of(liar.prepared, salt), **changes)


def vectors_of(device: str, *rounds: LyingRound) -> list[Array]:
    """Return each masked vector of a device."""
    return [signed(one, one.vectors[device]) for one in rounds if device in one.vectors]


def sums_of(played: LyingRound) -> dict[Names, Array]:
    """Return the sums that open. Each is that of its devices' vectors, and has as many honest devices as the law says."""
    found = dict(Learned(played).sums()) if played.reveals else {}
    least = played.group.threshold - len(COLLUDERS)
    for names, total in found.items():
        true = np.zeros_like(total)
        for name in names:
            true = true + played.truth[name]
        assert np.array_equal(total, true), names
        assert len(names) >= least
    assert len(found) <= 1
    return found


def assert_hidden(*rounds: LyingRound, victim: str = VICTIM) -> None:
    """Check that nothing computed from rounds without a sum of the victim resembles its update."""
    computed = vectors_of(victim, *rounds)
    for one in rounds:
        computed += [signed(one, total) for names, total in sums_of(one).items() if victim not in names]
    for one in rounds:
        if victim in one.truth:
            assert closest(computed, signed(one, one.truth[victim])) < HIDDEN


def refusals(played: LyingRound, device: str = VICTIM) -> str:
    return played.refused[device][-1]


def test_adversary_opens_the_sum_of_an_honest_round_and_nothing_else(liar):
    """So its computation is right; no message has a figure of a device, and no disk the vector of a committed update."""
    played = begun(liar, "honest").play()
    vectors = [agent.state_dir / "spool" / "vector.bin" for agent in liar.fleet.agents.values()]
    wait_for(lambda: True, lambda: not any(one.exists() for one in vectors), lambda: f"one of {vectors} is left", 20.0)
    played.end()
    assert list(sums_of(played)) == [frozenset(ALL)]
    for name in ALL:
        assert closest(vectors_of(name, played), signed(played, played.truth[name])) < HIDDEN
    assert_no_figures(liar)


def assert_no_figures(liar: LyingCoordinator) -> None:
    """Check that presence, acceptances and progress are the same for all devices, whatever their data."""
    for device, one in liar.heard:
        match one.body:
            case DeviceState():
                assert {task.num_examples for task in one.body.tasks} <= {1}, device
            case Accept():
                assert one.body.num_examples == 1
            case Progress():
                assert (one.body.done % 25, one.body.total) == (0, 100)
            case Evaluation():
                raise AssertionError(f"{device} has sent a measurement")


# ---- one round


def test_other_models_under_one_request_are_trained_on_by_nobody(liar):
    """A whole other model makes another request, so no group forms. After a false difference devices fetch the true model."""
    zeros = {name: np.zeros_like(values) for name, values in base_of(liar.prepared, "").items()}
    other, _ = liar.base(zeros)

    def whole(device: str, body: Any) -> Any:
        return replace(body, model=other) if isinstance(body, WorkRequest) and device != VICTIM else body

    played = begun(liar, "other", lie=whole).ask().draw()
    assert VICTIM not in played.shares
    assert "signature" in refusals(played)
    played.end()

    held = base_of(liar.prepared, "held")
    way = ModelDelta("ab" * 32, "cd" * 32, other)
    played = liar.round(
        held, lie=lambda _, body: replace(body, deltas=(way,)) if isinstance(body, WorkRequest) else body
    )
    played.play().end()
    packed = pack(zeros, liar.prepared.travelling, {}, "delta-bf16", base=held)
    _, led_to = unpack(
        packed.blob, encoding="delta-bf16", raw_bytes=packed.raw_bytes, schema=liar.prepared.travelling, base=held
    )
    way = ModelDelta(
        played.request.model.digest,
        values_digest(led_to, liar.prepared.travelling),
        liar.publish(packed),
    )

    def by_steps(device: str, body: Any) -> Any:
        return replace(body, deltas=(way,)) if isinstance(body, WorkRequest) and device != VICTIM else body

    played = begun(liar, "next", lie=by_steps).play().end()
    assert list(sums_of(played)) == [frozenset(ALL)]
    assert "downloading the whole model" in liar.fleet.agents[OTHERS[0]].log
    norms = {name: float(np.linalg.norm(signed(played, vector))) for name, vector in played.truth.items()}
    assert min(norms.values()) > 0.2 * norms[VICTIM], "every device trained on the model of the request"


def test_other_masking_set_for_the_victim_opens_no_sum_with_it(liar):
    """With two colluders, which vouch for every set."""
    played = begun(liar, "masking sets").ask().draw().train()
    few = frozenset({VICTIM, *OTHERS[:2], *COLLUDERS})
    played.distribute({VICTIM: few})
    played.unmask(dict.fromkeys(ALL, EVERYBODY))
    assert not played.agreements
    assert "are not a part of the masking set" in refusals(played)
    assert all("do not vouch" in refusals(played, one) for one in OTHERS)
    without = EVERYBODY - {VICTIM}
    played.unmask(dict.fromkeys(OTHERS, without) | {VICTIM: few}).reveal(dict.fromkeys(OTHERS, without)).end()
    assert set(played.reveals) == set(OTHERS)
    assert list(sums_of(played)) == [frozenset(OTHERS)]
    assert_hidden(played)


def test_other_reported_sets_for_some_devices_open_one_sum_only(liar):
    """Three devices are asked for a sum with the victim, one for a sum without it; colluders agree to both."""
    played = begun(liar, "reported sets").ask().draw().train().distribute()
    asked = dict.fromkeys((VICTIM, *OTHERS[:2]), EVERYBODY) | dict.fromkeys(OTHERS[2:], EVERYBODY - {VICTIM})
    played.unmask(asked)
    assert {device for device, _ in played.agreements} == set(ALL)
    played.reveal(asked).end()
    assert set(played.reveals) == {VICTIM, *OTHERS[:2]}
    assert all("below the threshold" in refusals(played, one) for one in OTHERS[2:])
    assert list(sums_of(played)) in ([frozenset(ALL)], [])


def test_false_codes_withheld_inboxes_and_short_sets_open_no_smaller_sum(liar):
    """Three devices of four get an inbox: with the colluders they are the threshold, and the least sum of the law."""
    played = begun(liar, "withheld").ask().draw().train()
    played.distribute({one: frozenset({one, VICTIM, *COLLUDERS}) for one in ALL})
    assert not played.offers
    assert all("below the threshold" in refusals(played, one) for one in ALL)
    some = (VICTIM, *OTHERS[:2])
    played.distribute({one: EVERYBODY if one in some else frozenset() for one in ALL})
    reported = frozenset((*some, *COLLUDERS))
    short, damaged = reported - {OTHERS[0]}, b"\x30\x06\x02\x01\x01\x02\x01\x01"
    played.unmask(dict.fromkeys(some, short))
    assert all("below the threshold" in refusals(played, one) for one in some)
    played.lie = lambda _, body: (
        replace(body, codes=tuple(damaged if code else code for code in body.codes))
        if isinstance(body, Unmask | Agreed)
        else body
    )
    played.unmask(dict.fromkeys(some, reported))
    assert not played.agreements
    assert all("do not vouch" in refusals(played, one) for one in some)
    played.lie = lambda _, body: body
    played.unmask(dict.fromkeys(some, reported)).reveal(dict.fromkeys(some, reported)).end()
    assert list(sums_of(played)) == [frozenset(some)]


Change = Callable[[LyingRound, tuple[GroupMember, ...]], Roster]


def _invented(played: LyingRound, members: tuple[GroupMember, ...]) -> Roster:
    keys = SecretKeys.new(random.Random(9).randbytes).public()
    return Roster(0, 5, (*members, GroupMember("zz-9", keys)))


def _borrowed(played: LyingRound, members: tuple[GroupMember, ...]) -> Roster:
    """Keys of the coordinator with the certificate and a signature of a member."""
    keys = SecretKeys.new(random.Random(9).randbytes).public()
    own = members[-1].keys
    return Roster(0, 5, (*members[:-1], GroupMember("zz-2", replace(own, share=keys.share, mask=keys.mask))))


def _copied(change: Callable[[bytes], bytes]) -> Change:
    def copied(played: LyingRound, members: tuple[GroupMember, ...]) -> Roster:
        mask = change(played.accepted[VICTIM].mask)
        keys = played.of.colluders[COLLUDERS[1]].keys(played.digest, mask=mask)
        return Roster(0, 5, (*members[:-1], GroupMember(COLLUDERS[1], keys)))

    return copied


def _plus_point_of_order_two(key: bytes) -> bytes:
    prime = 2**255 - 19
    return pow(int.from_bytes(key, "little"), -1, prime).to_bytes(32, "little")


ROSTERS: dict[str, tuple[Change, str]] = {
    "a member without a certificate": (_invented, "are not signed"),
    "keys of the coordinator in a member's name": (_borrowed, "the signature of zz-2"),
    "a copied key": (_copied(lambda key: key), "have the same key"),
    "a copied key with bit 255 flipped": (
        _copied(lambda key: bytes([*key[:31], key[31] ^ 0x80])),
        "have the same key",
    ),
    "a copied key plus a point of order two": (_copied(_plus_point_of_order_two), "have the same key"),
    "a point of small order": (_copied(lambda key: bytes(32)), "not a usable X25519 key"),
    "fewer members than the terms": (lambda _, members: Roster(0, 3, members[:3]), "is outside the terms"),
    "a lower threshold": (lambda _, members: Roster(0, 3, members), "is not that of the terms"),
    "a device without itself": (lambda _, members: Roster(0, 5, members[1:]), "does not name pi-0"),
    "a member twice": (lambda _, members: Roster(0, 6, (*members, members[-1])), "distinct and sorted"),
}
"""Rosters that no device joins, with the reason in its log."""


def _with_roster(played: LyingRound, change: Change, device: str, body: Any) -> Any:
    """Send the victim a changed roster, and the others none."""
    if not isinstance(body, Roster):
        return body
    return change(played, body.members) if device == VICTIM else None


def test_device_joins_no_group_of_a_false_roster(liar):
    """Invented members, copied keys in any form, small points, truncated rosters; then an honest roster counts."""
    played = begun(liar, "rosters", devices=ALL).ask()
    found = {}
    for name, (change, _) in ROSTERS.items():
        played.lie = partial(_with_roster, played, change)
        played.draw()
        found[name] = refusals(played)
    assert {name: text for name, text in found.items() if ROSTERS[name][1] not in text} == {}
    played.lie = lambda _, body: body
    assert VICTIM in played.draw().end().shares


@pytest.mark.slow
def test_replayed_messages_and_mixed_epochs_have_no_answer(liar):
    """Messages of an earlier round in a new one; earlier keys in a new roster; a second roster in a newer epoch."""
    first = begun(liar, "replay, first").play().end()
    second = begun(liar, "replay, second").ask()
    keys = second.accepted["pi-1"]
    second.accepted["pi-1"] = first.accepted["pi-1"]
    second.draw()
    assert not set(ALL) & second.shares.keys()
    assert "signature" in refusals(second)
    second.accepted["pi-1"] = keys
    second.draw()
    earlier = Inbox(first.group.context, first._inbox(VICTIM, EVERYBODY).boxes)
    sums = Unmask(first.group.context, first.reveals[VICTIM].reported, ())
    for body in (first.roster, earlier, sums, Agreed(*vars(sums).values())):
        second._exchange({VICTIM: body}, Offer)
        assert refusals(second)
    third = replace(second, epoch=2, shares={}, lie=lambda _, body: body)
    third.of = second.of
    third.accepted = {one: keys for one, keys in second.accepted.items() if one != "pi-3"}
    third.ask()
    third.accepted.pop("pi-3")
    third.draw()
    assert "a second roster for the same keys" in refusals(third)
    third.end()


# ---- several rounds and runs


def test_second_round_from_one_base_gets_no_update_in_any_round_run_or_group(liar):
    """Two sums from one base that differ in a drained device would be its update to the bit."""
    base = base_of(liar.prepared, "one base")
    first = liar.round(base).play().end()
    repeated = {
        "a round later": {"run": first.run, "number": 2},
        "another run": {},
        "other terms": {"terms": {"clip": 0.5}},
    }
    for changes in repeated.values():
        again = liar.round(base, devices=OTHERS, **changes).ask().end()
        assert {type(one) for one in again.answers.values()} == {Decline}
        assert {one.reason for one in again.answers.values() if isinstance(one, Decline)} == {DeclineReason.BASE_SPENT}
    assert list(sums_of(first)) == [frozenset(ALL)]


@pytest.mark.slow
def test_sum_after_a_round_of_tiny_ranges_holds_nothing_of_its_steps(liar):
    """A rounding error that a device kept would be in the next sum, whose model has no gradients of its own."""
    count = len(begun(liar, "count").layout.specs)
    begun(liar, "tiny", terms={"grid": write_grid((1e-9,) * count)}).play().end()
    still = begun(liar, "still", plan={"learning_rate": 1e-9}).play().end()
    codes = [trained(still, vector) for vector in still.truth.values()]
    assert max(int(np.abs(one).max()) for one in codes) <= 1


@pytest.mark.slow
def test_devices_still_have_gradients_after_a_step_at_an_absurd_rate(liar):
    """Others' patches are trained far away, so that the next sum would be the victim's update alone."""
    before = begun(liar, "before steering").play().end()
    steered = begun(liar, "steered", devices=OTHERS, plan={"learning_rate": 100.0}).play().end()
    assert steered.truth.keys() == set(OTHERS)
    after = begun(liar, "after steering").play().end()

    def norm(played: LyingRound) -> float:
        return min(float(np.linalg.norm(signed(played, played.truth[one]))) for one in OTHERS)

    assert norm(after) > 0.2 * norm(before)
    [total] = sums_of(after).values()
    assert correlation(signed(after, total), signed(after, after.truth[VICTIM])) < 0.98


# ---- around the masks

UNMASKED: dict[str, tuple[dict[str, Any], DeclineReason]] = {
    "an unmasked update": ({"secure": None, "encoding": "fp32"}, DeclineReason.INSECURE_REQUEST),
    "a measurement": ({"secure": None, "evaluate": True, "encoding": "fp32"}, DeclineReason.INSECURE_REQUEST),
    "a measurement with terms of masks": ({"evaluate": True}, DeclineReason.INSECURE_REQUEST),
    "private tensors": ({"private": "none"}, DeclineReason.PRIVATE_POLICY),
    "no values of the model": ({"content": UNSET}, DeclineReason.UNSUPPORTED),
}
TERMS: dict[str, dict[str, Any]] = {
    "smaller groups": {"group_min": 3},
    "unsigned keys": {"strict": False},
    "almost all of the weight": {"weight_cap": 10**6},
}


def test_requests_around_the_masks_are_declined(liar):
    """Unmasked updates, measurements, statistics, and terms below the owner's limits."""
    found = {}
    for name, (changes, _) in UNMASKED.items():
        played = begun(liar, name, devices=(VICTIM,), lie=lambda _, body, changes=changes: replace(body, **changes))
        found[name] = played.ask().answers[VICTIM]
    for name, terms in TERMS.items():
        found[name] = begun(liar, name, devices=(VICTIM,), terms=terms).ask().answers[VICTIM]
    expected = {name: reason for name, (_, reason) in UNMASKED.items()} | dict.fromkeys(
        TERMS, DeclineReason.SECURE_TERMS
    )
    assert {name: one.reason for name, one in found.items() if isinstance(one, Decline)} == expected
    assert_no_figures(liar)
