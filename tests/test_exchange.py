"""Whole runs, with both state machines joined: invariants on any link, and devices that disconnect and return.

The exchange itself asserts the invariants of every moment of every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.shared.wire.reason_codes import FailReason, RefuseReason
from tests.support.examples import examples
from tests.support.exchange import Exchange
from tests.support.specs import TASKS, run_spec
from tests.support.virtual_time import Faults

PATIENCE_S = 20_000.0

faults = st.builds(
    Faults,
    drop=st.sampled_from((0.0, 0.05, 0.2)),
    duplicate=st.sampled_from((0.0, 0.3)),
    delay_s=st.sampled_from((0.0, 0.5, 6.0)),
)
# If a fifth of all messages is lost, one device in a hundred rounds loses all its answers within SILENT_S and counts as lost.
passable = faults.filter(lambda bad: bad.drop < 0.2)
runs = st.builds(
    run_spec,
    devices=st.integers(1, 4),
    quorum=st.sampled_from((0.3, 0.7, 1.0)),
    min_cohort=st.integers(1, 2),
    participation=st.sampled_from((0.5, 1.0)),
    over_select=st.sampled_from((1.0, 1.5)),
    deadline_s=st.sampled_from((15.0, 120.0)),
    grace_s=st.sampled_from((0.0, 5.0, 20.0)),
    rejoin_s=st.sampled_from((0.0, 10.0)),
    upload_slots=st.integers(1, 2),
    upload_window=st.integers(1, 5),
    rounds=st.integers(1, 3),
    time_limit_s=st.sampled_from((None, None, 25.0)),
)


_ACCIDENTS = ("unplug", "restart", "tear", "coordinator", "replay")


@st.composite
def accidents(draw, longest_s: float = 40.0) -> list[tuple[float, Callable[[Exchange], None]]]:
    """Accidents and their times: devices lose their connection or their power, the coordinator is killed or reconnects."""
    found: list[tuple[float, Callable[[Exchange], None]]] = []
    for _ in range(draw(st.integers(0, 5))):
        at, down_s = draw(st.sampled_from((0.3, 2.0, 4.0, 9.0, 20.0))), draw(st.sampled_from((0.1, 3.0, longest_s)))
        name, kind = (
            f"pi-{draw(st.integers(0, 3))}",
            draw(st.sampled_from(_ACCIDENTS)),
        )
        found.append((at, partial(_happen, name=name, kind=kind, down_s=down_s)))
    return found


def _happen(world: Exchange, name: str, kind: str, down_s: float) -> None:
    device = world.devices.get(name)
    if kind == "coordinator":
        world.restart_coordinator(down_s)
    elif kind == "replay":
        world.replay_presence()
    elif device is not None and device.online:
        device.unplug(down_s) if kind == "unplug" else device.restart(down_s, torn=kind == "tear")


def play(spec: RunSpec, devices: int = 4, **options) -> Exchange:
    """Run to the end, and return the exchange."""
    return Exchange(spec, devices, **options).start().run(PATIENCE_S)


@pytest.mark.medium
@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(runs, faults, accidents(), st.integers(0, 2**32))
def test_any_run_ends_and_leaves_nobody_at_work(spec, bad, events, seed):
    """For any losses and failures: the run stops for a known reason, its counts are consistent, and all devices become idle."""
    world = Exchange(spec, 4, seed=seed, bad=bad)
    for at, event in events:
        world.agenda.after(at, partial(event, world))
    world.start().run(PATIENCE_S)
    assert world.finish is not None
    assert world.finish.reason in (Stopped.MAX_ROUNDS, Stopped.FAILED, Stopped.DEADLINE)
    for number, record in enumerate(world.records, 1):
        assert record.round == number
        assert (record.outcome == "aggregated") == (record.failure == "")
        assert record.reported <= record.accepted <= record.cohort <= 4
        apart = record.declined + record.late + sum(record.failures.values())
        assert record.reported + apart == record.cohort
    world.drain()
    assert [name for name, device in world.devices.items() if device.job.key is not None] == []


@examples(50)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32))
def test_on_a_good_link_everybody_reports_in_every_round(devices, slots, seed):
    """Without faults no device is ever missing, and each sends few superfluous messages."""
    world = play(run_spec(devices=devices, upload_slots=slots), devices, seed=seed)
    assert [(record.outcome, record.reported) for record in world.records] == [("aggregated", devices)] * 3
    assert all(device.outcomes == ["committed"] * 3 for device in world.drain().devices.values())
    for name in world.devices:
        assert [world.counts[name, what, ""] for what in ("invited", "accepted", "reported", "lost")] == [3, 3, 3, 0]


@examples(50)
@given(passable, st.integers(0, 2**32))
def test_on_a_bad_link_rounds_still_come_about(bad, seed):
    """With enough time, lost messages delay rounds, but exclude no device."""
    world = play(run_spec(devices=4, recruit_deadline_s=100.0, deadline_s=2000.0), seed=seed, bad=bad)
    assert [(record.outcome, record.reported) for record in world.records] == [("aggregated", 4)] * 3


@pytest.mark.medium
@examples(100)
@given(passable, accidents(longest_s=3.0), st.integers(0, 2**32))
def test_short_accidents_cost_no_device(bad, events, seed):
    """A device that is back in time takes part: neither side waits until the deadline for a message that the other lost."""
    spec = run_spec(recruit_deadline_s=400.0, deadline_s=5000.0, rejoin_s=300.0)
    world = Exchange(spec, 4, seed=seed, bad=bad)
    for at, event in events:
        world.agenda.after(at, partial(event, world))
    world.start().run(PATIENCE_S)
    assert [record.outcome for record in world.records] == ["aggregated"] * 3
    assert [record.reported for record in world.records] == [record.cohort for record in world.records]


class TestRounds:
    def test_with_more_devices_than_wanted_close_at_the_quorum(self):
        """The fastest devices make the round, the slowest are cancelled as late."""
        world = Exchange(run_spec(devices=4, participation=0.5, over_select=2.0, grace_s=5.0, rounds=1), 4)
        for number, device in enumerate(world.devices.values()):
            device.train_s = (10.0 * number + 1.0,) * 2
        world.start().run(PATIENCE_S)
        [record] = world.records
        assert (record.cohort, record.reported, record.late) == (4, 2, 2)
        assert 11.0 < sum(vars(record.phase_seconds).values()) < 20.0
        assert [device.outcomes for device in world.drain().devices.values()] == [
            ["committed"],
            ["committed"],
            ["cancelled: late"],
            ["cancelled: late"],
        ]

    def test_run_continues_after_rounds_below_the_quorum(self):
        world = Exchange(run_spec(devices=2), 2)
        device = world.devices["pi-0"]
        device.fails = FailReason.TRAINING
        world.agenda.after(4.0, lambda: setattr(device, "fails", None))
        world.start().run(PATIENCE_S)
        first, *_, last = world.records
        assert (first.outcome, first.failures) == ("failed", {"training": 1})
        assert last.outcome == "aggregated"
        assert world.finish is not None
        assert world.finish.reason is Stopped.MAX_ROUNDS

    def test_run_ends_after_repeated_failed_rounds(self):
        world = Exchange(run_spec(devices=2, rounds=9, max_failed_rounds=2, recruit_deadline_s=1.0), 2)
        for device in world.devices.values():
            device.fails = FailReason.NOT_FINITE
        world.start().run(PATIENCE_S)
        assert len(world.records) == 2
        assert world.finish is not None
        assert world.finish.reason is Stopped.FAILED
        assert "2 rounds in a row failed, the last one: quorum_missed" in world.finish.detail

    def test_count_why_devices_declined(self):
        """The record has the reasons, and a device with a lasting reason is not asked again."""
        world = Exchange(run_spec(devices=4, rounds=2, quorum=0.6), 4)
        world.devices["pi-0"].verdict = AdmissionDecision(False, "on battery")
        world.devices["pi-1"].tasks = (replace(TASKS[0], schema="00" * 32),)
        world.start().run(PATIENCE_S)
        assert [record.decline_reasons for record in world.records] == [
            {"unwilling": 1, "schema_mismatch": 1},
            {"unwilling": 1},
        ]
        assert [record.reported for record in world.records] == [2, 2]

    def test_go_on_without_an_update_that_is_refused(self):
        """The device receives the reason and drops the update; as an offender it is not asked again."""
        world = Exchange(run_spec(devices=3, quorum=0.5, rounds=2), 3)
        world.refuse["pi-1"] = RefuseReason.NOT_FINITE
        world.start().run(PATIENCE_S)
        assert [(record.reported, record.refused) for record in world.records] == [
            (2, {"not_finite": 1}),
            (2, {}),
        ]
        assert world.drain().devices["pi-1"].outcomes == ["refused: not_finite as planned"]


class TestComingAndGoing:
    @pytest.mark.parametrize("at", [0.7, 2.0, 3.5, 5.0], ids="second {}".format)
    @pytest.mark.parametrize("down_s", [0.05, 3.0, 12.0], ids="for {} s".format)
    @pytest.mark.parametrize("kind", ["unplug", "restart", "tear"])
    def test_a_device_that_comes_back_is_part_of_the_round(self, at, down_s, kind):
        """The round waits for the device, in any state of the device and with any delay of its last will."""
        world = Exchange(run_spec(devices=2, rounds=1, rejoin_s=30.0), 2)
        for device in world.devices.values():
            device.train_s = (3.0, 3.0)
        world.agenda.after(at, partial(_happen, world, "pi-0", kind, down_s))
        world.start().run(PATIENCE_S)
        assert [(record.outcome, record.reported) for record in world.records] == [("aggregated", 2)]

    def test_a_device_that_stays_away_is_given_up(self):
        """After all others have reported, the round waits for `rejoin_s`, then counts the device as lost."""
        world = Exchange(run_spec(devices=3, rounds=1, quorum=0.6, rejoin_s=15.0, grace_s=200.0), 3)
        world.agenda.after(1.0, partial(_happen, world, "pi-0", "unplug", 1000.0))
        world.start().run(PATIENCE_S)
        [record] = world.records
        assert (record.outcome, record.reported, record.failures) == ("aggregated", 2, {"lost": 1})
        assert 15.0 < sum(vars(record.phase_seconds).values()) < 25.0

    def test_an_update_in_the_spool_is_committed_after_a_power_cut(self):
        """The device does not train again."""
        world = Exchange(run_spec(devices=1, rounds=1, upload_window=1), 1)
        device = world.devices["pi-0"]
        device.train_s = (2.0, 2.0)
        world.link.faults = Faults(delay_s=0.5)
        world.start()
        while device.job.status() is None or device.job.state.value != "uploading":
            world._step(PATIENCE_S)
        device.restart(5.0)
        world.run(PATIENCE_S)
        assert [record.reported for record in world.records] == [1]
        assert world.counts["pi-0", "accepted", ""] == 1
        assert world.drain().devices["pi-0"].outcomes == ["committed"]

    def test_a_coordinator_that_was_killed_takes_the_run_up_again(self):
        """The open round is repeated in a new epoch; updates of the old epoch are refused."""
        world = Exchange(run_spec(devices=3, rounds=2), 3)
        for device in world.devices.values():
            device.train_s = (4.0, 4.0)
        world.agenda.after(6.0, partial(world.restart_coordinator, 3.0))
        world.start().run(PATIENCE_S)
        assert [(record.outcome, record.reported) for record in world.records] == [("aggregated", 3)] * 2
        assert world.spec.epoch == 2
        world.drain()
        assert all(device.outcomes[-1] == "committed" for device in world.devices.values())


class TestEnd:
    def test_comes_when_the_target_is_reached(self):
        world = Exchange(run_spec(devices=2, rounds=9, target_ua=0.9), 2)
        world.accuracy = {1: 0.5, 2: 0.91}
        world.start().run(PATIENCE_S)
        assert world.finish is not None
        assert (world.finish.reason, len(world.records)) == (Stopped.TARGET_UA, 2)

    def test_comes_with_the_time_limit(self):
        world = Exchange(run_spec(devices=2, rounds=99, time_limit_s=30.0), 2)
        for device in world.devices.values():
            device.train_s = (12.0, 12.0)
        world.start().run(PATIENCE_S)
        assert world.finish is not None
        assert world.finish.reason is Stopped.DEADLINE
        assert world.now == pytest.approx(1030.1)
        assert [record.outcome for record in world.records] == ["aggregated", "aggregated", "failed"]

    def test_comes_when_no_device_does(self):
        world = play(run_spec(devices=3, wait_s=60.0), 2)
        assert world.finish is not None
        assert world.finish.reason is Stopped.FAILED
        assert world.now == pytest.approx(1060.1)
        assert "2 of 3 devices came within 60 s" in world.finish.detail

    def test_comes_on_demand(self):
        world = Exchange(run_spec(devices=2), 2).start()
        world.run(1.5)
        world.interrupt()
        assert world.finish is not None
        assert world.finish.reason is Stopped.INTERRUPTED
        assert world.records == []  # a resume repeats the round
        assert world.cancelled == {"pi-0": 1, "pi-1": 1}
        assert all(device.outcomes == ["cancelled: late"] for device in world.drain(5.0).devices.values())
        world.interrupt()
        assert world.cancelled == {"pi-0": 1, "pi-1": 1}
