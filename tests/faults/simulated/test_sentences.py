"""Schedules that one sentence each describes. `schedules.play` checks the invariants of all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Accept, Committed, Offer
from tests.faults.simulated.schedules import (
    Schedule,
    damage_checkpoint,
    damage_held,
    kill_agent,
    kill_broker,
    play,
    settings,
)
from tests.faults.simulated.world import World

Watch = Callable[[World], None]


def played(watch: Watch, **changes: object) -> World:
    """Return the world after a run of three devices."""
    return play(Schedule(1, settings(**changes)), watch)


def rounds(world: World) -> list[RoundRecord]:
    """Return the records of the run that had the faults."""
    run = min(run for run, _ in world.oracle.records)
    return [record for (of, _), record in sorted(world.oracle.records.items()) if of == run]


def times_logged(world: World, words: str) -> int:
    """Return the number of log lines with these words."""
    return sum(words in line for line in world.log)


def outcomes(world: World) -> list[tuple[str, int]]:
    return [(record.outcome, record.reported) for record in rounds(world)]


def is_up(kind: type, payload: bytes) -> bool:
    """Return whether this is a message of a kind."""
    return isinstance(decode(payload).body, kind)


def test_nobody_fails():
    world = played(lambda world: None)
    assert outcomes(world) == [("aggregated", 3)] * 3
    assert times_logged(world, "saved its patch") == 3 * (3 + 1)


def test_everybody_goes_on_from_the_model_that_it_holds(caplog):
    """With a delta encoding, a device downloads the whole model only once, unless the model that it holds is damaged."""

    def watch(world: World) -> None:
        world.when("round 1 is over", partial(kill_agent, world, name="pi-1", pause_s=0.5))
        world.when("round 2 is over", partial(damage_held, world, name="pi-2", at=0.9))

    world = played(watch, encoding="delta-int8")
    assert outcomes(world) == [("aggregated", 3)] * 3
    assert times_logged(world, "comes to its model by 1 steps") == 3 + 2
    assert [
        record.getMessage().partition(":")[0] for record in caplog.records if "whole model" in record.getMessage()
    ] == ["no way from the global model that is held to that of the round"]


def test_the_coordinator_is_killed_while_the_last_update_is_on_its_way():
    def watch(world: World) -> None:
        def swallows(topic: str, payload: bytes) -> bool:
            late = topic.split("/")[-3:-2] == ["blob"] or "/blob/" in topic.partition("/dev/")[2]
            if late and len(world.oracle.committed[world.oracle.run, 1]) == 2:
                world.broker.swallows = lambda topic, payload: False
                world.coordinator.kill(3.0)
            return False

        world.broker.swallows = swallows

    world = played(watch)
    assert outcomes(world) == [("aggregated", 3)] * 3
    assert times_logged(world, "round 1 goes on with 2 of 3 updates") == 1
    assert times_logged(world, "saved its patch of round 1") == 3 + 3  # the calm run has a round 1 too


def test_the_coordinator_is_killed_between_the_disk_and_the_word():
    def watch(world: World) -> None:
        world.when("round 1: the update of", partial(world.coordinator.die_here, 2.0))

    world = played(watch)
    assert outcomes(world) == [("aggregated", 3)] * 3
    assert times_logged(world, "round 1 goes on with 1 of 3 updates") == 1


def test_the_word_committed_is_lost():
    def watch(world: World) -> None:
        def swallows(topic: str, payload: bytes) -> bool:
            return topic.endswith("/dn") and is_up(Committed, payload) and len(world.coordinator.started_at) == 1

        world.broker.swallows = swallows
        world.when("round 2: the update of", lambda: world.agenda.after(1.0, partial(world.coordinator.kill, 2.0)))

    world = played(watch)
    assert outcomes(world) == [("aggregated", 3)] * 3


def test_the_coordinator_is_killed_twice_in_one_round():
    def watch(world: World) -> None:
        def again() -> None:
            world.when("round 1: the update of", partial(world.coordinator.die_here, 2.0))
            world.coordinator.die_here(2.0)

        world.when("round 1: the update of", again)

    world = played(watch)
    assert outcomes(world) == [("aggregated", 3)] * 3
    assert (
        times_logged(world, "round 1 goes on with 1 of 3 updates")
        == times_logged(world, "round 1 goes on with 2 of 3 updates")
        == 1
    )


@pytest.mark.parametrize(("quorum", "first"), [(0.3, ("aggregated", 1)), (1.0, ("failed", 1))])
def test_the_coordinator_comes_back_after_the_deadline(quorum, first):
    def watch(world: World) -> None:
        world.when("round 1: the update of", partial(world.coordinator.die_here, 100.0))

    world = played(watch, quorum=quorum, grace_s=60.0)
    assert outcomes(world)[0] == first
    assert times_logged(world, "round 1 goes on with 1 of 3 updates, 0 s to its deadline") == 1


@pytest.mark.parametrize("at_s", [8.2, 9.0, 12.0, 18.0])
def test_the_broker_forgets_everything(at_s):
    world = play(Schedule(1, settings(rejoin_s=40.0)).at(at_s, partial(kill_broker, pause_s=4.0, forgets=True)))
    assert outcomes(world) == [("aggregated", 3)] * 3


def test_a_device_reboots_while_its_update_waits_and_the_coordinator_is_in_its_next_epoch():
    def watch(world: World) -> None:
        def swallows(topic: str, payload: bytes) -> bool:
            if topic.endswith("/pi-1/up") and is_up(Offer, payload):
                world.broker.swallows = lambda topic, payload: False
                world.coordinator.kill(2.0)
                world.devices["pi-1"].kill()
                world.agenda.after(10.0, world.devices["pi-1"].start)
                return True
            return False

        world.broker.swallows = swallows

    world = played(watch)
    assert outcomes(world) == [("aggregated", 3)] * 3
    assert times_logged(world, "pi-1 saved its patch of round 1") == 1 + 1


def test_the_last_checkpoint_is_damaged_while_the_coordinator_is_down():
    def watch(world: World) -> None:
        def later() -> None:
            world.agenda.after(0.5, partial(damage_checkpoint, world, pause_s=2.0))

        world.when("round 2 is over", later)

    world = played(watch)
    assert outcomes(world) == [("aggregated", 3)] * 3
    assert times_logged(world, "going back to that of round 1") == 1
    assert times_logged(world, "round 2: the update of") == 3 + 3
    assert all(len(history) == 4 for history in world.oracle.patches.values())


def test_a_device_is_switched_off_between_its_patch_and_its_update():
    def watch(world: World) -> None:
        def off() -> None:
            world.devices["pi-1"].kill()
            world.agenda.after(3.0, world.devices["pi-1"].start)

        world.when("pi-1 saved its patch of round 2", off)

    world = played(watch)
    assert outcomes(world) == [("aggregated", 3)] * 3


def mute(world: World, name: str) -> None:
    """From now on, drop all messages of a device except its presence and one `accept` in each round."""
    accepted: set[int] = set()

    def swallows(topic: str, payload: bytes) -> bool:
        if world.is_calm or f"/dev/{name}/" not in topic or topic.endswith(("/state", "/dn")):
            return False
        if topic.endswith("/up") and is_up(Accept, payload) and (number := decode(payload).round) not in accepted:
            accepted.add(number)
            return False
        return True

    world.broker.swallows = swallows


def defaults(**changes: object) -> Schedule:
    """Return a schedule with the default policy of rounds."""
    names = ("quorum", "recruit_deadline_s", "deadline_s", "grace_s", "rejoin_s", "wait_s", "max_failed_rounds")
    return Schedule(1, settings(**{name: getattr(RunSettings(), name) for name in names}, **changes))


def test_a_device_among_four_accepts_and_is_mute():
    """With default settings one round fails within two minutes; the others do not wait for the deadline of 600 s."""
    world = play(defaults(devices=4, rounds=9), lambda world: mute(world, "pi-1"))
    played = rounds(world)
    assert [record.outcome for record in played] == ["failed", *["aggregated"] * 8]
    assert played[0].failures == {"silent": 1}
    assert [record.absent["pi-1"] for record in played] == [1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert all(record.seconds < 120.0 for record in played)
    assert all(record.seconds < 40.0 for record in played[1:])


def test_the_upload_of_a_device_among_four_stands_still():
    def watch(world: World) -> None:
        seen: set[bytes] = set()

        def swallows(topic: str, payload: bytes) -> bool:
            if world.is_calm or "/dev/pi-1/blob/" not in topic:
                return False
            seen.add(payload)
            return len(seen) > 1

        world.broker.swallows = swallows

    world = play(defaults(devices=4, rounds=3), watch)
    played = rounds(world)
    assert [record.outcome for record in played] == ["failed", "aggregated", "aggregated"]
    assert played[0].failures == {"silent": 1}
    assert played[0].seconds < 200.0


@pytest.mark.medium
def test_a_slow_device_among_four_is_waited_for():
    def watch(world: World) -> None:
        world.train_s = (250.0, 300.0)

    world = play(defaults(devices=4, rounds=3), watch)
    assert outcomes(world) == [("aggregated", 4)] * 3
    first, second, _ = rounds(world)
    assert first.deadline_s == 600.0
    assert first.report_p90_s is not None
    assert second.deadline_s == 3 * first.report_p90_s > 750.0


def test_the_coordinator_is_killed_and_knows_the_absent_device_and_the_deadline():
    def watch(world: World) -> None:
        mute(world, "pi-1")
        world.when("round 4: the update of", partial(world.coordinator.die_here, 5.0))

    world = play(defaults(devices=4, rounds=7), watch)
    played = rounds(world)
    assert [record.outcome for record in played] == ["failed", *["aggregated"] * 6]
    assert [record.absent["pi-1"] for record in played] == [1, 2, 2, 3, 3, 3, 3]
    assert all(record.deadline_s == 60.0 for record in played[2:])
