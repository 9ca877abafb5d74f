"""Under every attack the honest devices get the same model, in as many rounds and with little more memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.shared.wire.topics import mosquitto_acl
from tests.attacks.arena import HONEST, MAX_DEVICES, ROUNDS, Arena, Outcome, honest_fleet
from tests.attacks.attack import Proof, devices_of
from tests.attacks.by_theft import FLEET, THEFTS, THIEF, VICTIM
from tests.attacks.table import ATTACKS
from tests.support.brokers import PATIENCE_S, Mosquitto, client
from tests.system.commands import run

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600)]

PLAYED = devices_of(ATTACKS)
MORE_MIB = 160.0
"""Additional memory that the coordinator may use under attack, for queued messages and the heap of its libraries."""


@dataclass(frozen=True)
class Siege:
    """The run without attackers, the run with all attackers, and the result of each attacker."""

    calm: Outcome
    attacked: Outcome
    fates: dict[str, Future[Proof | None]]


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """Two runs, one after the other, that all tests share."""
    directory = tmp_path_factory.mktemp("siege")
    parts = sum(one.part for one in ATTACKS)
    # With mosquitto's default queues a flood loses messages of clients that do not repeat them, such as the attackers.
    with Mosquitto("max_queued_messages 0") as broker:
        calm, attacked = (Arena(broker, name, directory) for name in ("calm", "siege"))
        with honest_fleet(calm) as fleet, honest_fleet(attacked) as besieged:
            fleet.wait_ready()
            without = calm.run(len(HONEST), 1.0)
            besieged.wait_ready()
            with ThreadPoolExecutor(len(ATTACKS)) as pool:
                fates = {device: pool.submit(one.play, attacked, device) for device, one in PLAYED.items()}
                # The three honest devices are the quorum: after their updates a round waits only for stalling devices.
                under_attack = attacked.run(len(HONEST) + parts, 2.6 / (len(HONEST) + parts))
        for arena in (calm, attacked):
            arena.spy.stop()
        yield Siege(without, under_attack, fates)


@pytest.mark.parametrize("device", PLAYED, ids=[one.name for one in PLAYED.values()])
def test_attack_has_happened_and_was_stopped(siege, device):
    proof = siege.fates[device].result(timeout=120)
    assert proof is None or proof(siege.attacked)


def test_the_model_is_the_same_to_the_last_bit(siege):
    """The model contains every honest update and no attacker's."""
    calm, attacked = (
        load_checkpoint(run_directory(one.state_dir, one.summary["run"]))[0] for one in (siege.calm, siege.attacked)
    )
    assert calm.round == attacked.round == ROUNDS
    assert calm.tensors.keys() == attacked.tensors.keys()
    for name, values in calm.tensors.items():
        assert np.array_equal(values, attacked.tensors[name]), name


def test_every_round_counts_the_honest_devices_alone(siege):
    """There are as many rounds as without attackers; none failed, and each has all honest updates and no others."""
    assert siege.attacked.summary["stopped_because"] == siege.calm.summary["stopped_because"] == "max_rounds"
    examples = {record["num_examples"] for record in siege.calm.summary["rounds"]}
    for record in siege.attacked.summary["rounds"]:
        assert (record["outcome"], record["reported"], record["num_examples"]) == ("aggregated", 3, *examples)
    assert len(siege.attacked.summary["rounds"]) == ROUNDS


def test_no_round_lasts_until_its_deadline(siege):
    """A stalling device prolongs a round by the time to answer and the grace period at most."""
    for record in siege.attacked.summary["rounds"]:
        assert sum(record["phase_seconds"].values()) < 200


def test_memory_of_the_coordinator_is_bounded(siege):
    """The peak under attack is compared with the peak without attackers."""
    assert siege.attacked.peak_mib < siege.calm.peak_mib + MORE_MIB


def test_no_honest_device_is_quarantined_or_dropped(siege):
    """No honest device is in quarantine, and none of their messages was dropped."""
    for device in HONEST:
        known = siege.attacked.devices[device]
        assert (known["quarantined"], known["offences"], known["ignored"], known["refused"]) == (None, 0, 0, 0)
    for reason in ("over_limit", "not_granted", "not_ours", "fleet_full"):
        assert siege.calm.ignored(reason) == 0


def test_number_of_known_devices_is_bounded(siege):
    """Invented names fill neither the fleet's table nor the registry."""
    assert len(siege.attacked.devices) <= MAX_DEVICES


def test_report_shows_scripts_as_text(siege, tmp_path: Path):
    page = tmp_path / "report.html"
    done = run("fedpatch", "report", "last", "--state-dir", siege.attacked.state_dir, "--out", page)
    assert done.code == 0, done.err
    pages = [path.read_text("utf-8") for path in tmp_path.rglob("*.html")]
    assert pages
    assert all("<script>alert" not in text for text in pages)


def test_tables_hold_no_control_characters(siege):
    """The tables of `devices`, `show` and `runs` have no control characters."""
    for command in (["devices"], ["show", "last"], ["runs"]):
        done = run("fedpatch", *command, "--state-dir", siege.attacked.state_dir)
        assert done.code == 0, done.err
        assert all(line.isprintable() for line in done.out.splitlines())


@pytest.fixture(scope="module")
def guarded() -> Iterator[dict[str, bool]]:
    """Whether a broker with access rules delivered each theft. The broker acknowledges all of them."""
    words = {"coordinator": "c", VICTIM: "v", THIEF: "t", "auditor": "a"}
    rules = mosquitto_acl(FLEET, "coordinator", [VICTIM, THIEF]) + "\nuser auditor\ntopic readwrite #\n"
    rules += f"\nuser {THIEF}\ntopic readwrite barrier/#\n"
    with (
        Mosquitto(passwords=words, acl=rules) as broker,
        client(broker.url, "auditor", "fedpatch/#", username="auditor", password="a") as auditor,
        client(broker.url, "thief", username=THIEF, password="t") as thief,
    ):
        auditor.settle()
        for theft in THEFTS:
            thief.link.publish(theft.topic, theft.payload)
        thief.settle()
        until = time.monotonic() + PATIENCE_S
        while not thief.link.idle and time.monotonic() < until:
            time.sleep(0.02)
        assert thief.link.idle, "the broker has not acknowledged the thefts"
        auditor.settle()
        yield {theft.name: theft.topic in auditor.topics for theft in THEFTS}


@pytest.mark.parametrize("name", [one.name for one in THEFTS])
def test_theft_is_not_delivered_with_access_rules(guarded, name):
    assert not guarded[name]


def test_theft_is_delivered_without_access_rules():
    """This proves that the access rules stop the thefts, not an error of the test."""
    with Mosquitto() as broker, client(broker.url, "all", "fedpatch/#") as auditor, client(broker.url, "t") as thief:
        auditor.settle()
        for theft in THEFTS:
            thief.link.publish(theft.topic, theft.payload)
        thief.settle()
        auditor.settle()
        assert {theft.topic for theft in THEFTS} <= set(auditor.topics)
