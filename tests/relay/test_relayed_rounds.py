"""Relays with real brokers: a hub, two relays as processes, and the light devices of two sites."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpatch
from fedpatch.coordinator.aggregation.moved_base import moved
from fedpatch.coordinator.runtime import used_base
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.tasks.torch_model import schema_of
from tests.relay.light_site import LightSite, accuracy_of, examples_of
from tests.support.brokers import Mosquitto
from tests.system.commands import Command
from tests.system.oracle_task import REFERENCE, TASK

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600)]

SITES = {"site-a": ["a1", "a2"], "site-b": ["b1", "b2"]}
LOWER = ["c1", "c2"]
# A masked group has 8 devices at least, and one of site-m is lost.
MASKED_SITES = {"site-m": [f"m{number}" for number in range(9)], "site-n": [f"n{number}" for number in range(8)]}
NAMES = [device for devices in SITES.values() for device in devices]
UNBOUNDED = {"norm_bound": "off", "max_num_examples": "off"}
PATIENT = {"rejoin_s": 100.0, "grace_s": 100.0, "recruit_deadline_s": 100.0, "deadline_s": 300.0, "wait_s": 100.0}


@dataclass
class World:
    """A hub's broker, and a site with a broker, devices and a relay for each name of SITES."""

    directory: Path
    stack: ExitStack
    hub: Mosquitto
    brokers: dict[str, Mosquitto] = field(default_factory=dict)
    sites: dict[str, LightSite] = field(default_factory=dict)
    relays: dict[str, Command] = field(default_factory=dict)

    def start_site(self, site: str, *options: object, ca_file: Path | None = None) -> None:
        """Start the broker and the devices of a site, and its relay."""
        self.brokers[site] = self.stack.enter_context(Mosquitto())
        self.sites[site] = self.light(self.brokers[site].url, site, (SITES | MASKED_SITES)[site], ca_file)
        self.start_relay(site, *options)

    def start_relay(self, site: str, *options: object) -> None:
        """Start the relay of a site, or start it again."""
        given = ["--up", self.hub.url, "--up-fleet", "world", "--device-id", site, "--task", REFERENCE]
        given += ["--down", self.brokers[site].url, "--fleet", site, "--state-dir", str(self.state_of(site))]
        given += ["--norm-bound", "off", "--max-num-examples", "off", "--min-cohort", "2", "--quorum", "1"]
        self.relays[site] = self.stack.enter_context(Command("fedpatch-relay", "run", *given, *options))

    def state_of(self, site: str) -> Path:
        return self.directory / f"relay-{site}"

    def light(self, url: str, fleet: str, devices: list[str], ca_file: Path | None = None) -> LightSite:
        return self.stack.enter_context(
            LightSite(url, fleet, TASK.name, schema_of(TASK.build_model()), devices, ca_file)
        )

    def start_run(self, fleet: str, devices: int, **terms: Any):
        """Start a run of the hub; `result` of the job waits for its end."""
        given: dict[str, Any] = {"rounds": 2, "encoding": "fp32", "strategy": "fedavg", "quorum": 1.0, **UNBOUNDED}
        given |= PATIENT | {"independent_every": 0, "max_members": 10, "metrics": "none"}
        return fedpatch.start_run(
            broker=self.hub.url,
            fleet=fleet,
            task=REFERENCE,
            devices=devices,
            state_dir=str(self.directory / f"hub-{fleet}"),
            new=True,
            **(given | terms),
        )

    def model_of(self, fleet: str, run: str) -> dict[str, np.ndarray]:
        state, _, _ = load_checkpoint(run_directory(self.directory / f"hub-{fleet}", run))
        return state.tensors


@pytest.fixture
def world(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack, mosquitto)


def test_two_level_rounds_give_the_flat_model_and_one_digest_for_all_devices(world):
    flat = world.light(world.hub.url, "flat", NAMES)
    for site in SITES:
        world.start_site(site)
    for strategy in ("fedavg", "fedadam", "fedavg-adam"):
        expected = world.start_run("flat", len(NAMES), strategy=strategy).result()
        found = world.start_run("world", len(SITES), strategy=strategy).result()
        assert [record.outcome for record in found.rounds] == ["aggregated"] * 2, world.relays["site-a"].err
        _assert_same_model(world.model_of("world", found.run), world.model_of("flat", expected.run), strategy)
        for one, other in zip(found.rounds, expected.rounds, strict=True):
            assert (one.measured, one.num_examples) == (other.measured, other.num_examples)
            assert one.user_accuracy == pytest.approx(other.user_accuracy)
            # One update of each site crosses the wide network.
            assert one.bytes_up <= 1.05 * other.bytes_up * len(SITES) / len(NAMES)
            assert one.bytes_down <= 1.05 * other.bytes_down * len(SITES) / len(NAMES)
    differences = world.start_run("world", len(SITES), encoding="delta-int8").result()
    assert [record.outcome for record in differences.rounds] == ["aggregated"] * 2, world.relays["site-a"].err
    # The first rounds of all runs have one initial model, which travels under one digest to all devices.
    first = {
        updates.requests[0].model.digest for site in (flat, *world.sites.values()) for updates in site.updates.values()
    }
    assert len(first) == 1
    assert all(relay.terminate().code == 0 for relay in world.relays.values())


def _assert_same_model(found, expected, strategy):
    """Equal to 2 ulp of the largest value with FedAvg; FedAdam divides by roots of small squares, which magnifies rounding."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        ulp = np.spacing(np.abs(values).max(initial=0))
        assert np.abs(found[name] - values).max(initial=0) <= (2 if strategy != "fedadam" else 2000) * ulp, name


def test_relay_killed_in_its_round_resumes_it_and_no_update_counts_twice(world):
    world.start_site("site-a")
    slow = world.sites["site-a"].updates["a2"]
    slow.delay_s = 6.0
    job = world.start_run("world", 1, rounds=1)
    world.relays["site-a"].wait(lambda: _committed(world, "site-a") == 1, "commits the update of the quick device")
    world.relays["site-a"].kill()
    world.start_relay("site-a")
    record = job.result().rounds[-1]
    assert record.outcome == "aggregated", world.relays["site-a"].err
    assert record.num_examples == sum(map(examples_of, SITES["site-a"]))
    assert record.user_accuracy == pytest.approx(statistics.fmean(map(accuracy_of, SITES["site-a"])))
    assert len(world.sites["site-a"].updates["a1"].requests) == 1


@pytest.mark.slow
def test_relay_killed_in_a_masked_round_goes_on_with_its_groups_and_each_update_counts_once(world):
    world.start_site("site-m", "--quorum", "1")
    devices = MASKED_SITES["site-m"]
    world.relays["site-m"].wait_err(f"site: {len(devices)} devices")
    world.sites["site-m"].devices["m2"].pause_s = 6.0
    job = world.start_run("world", 1, rounds=1, secure="groups", threshold="half", encoding="masked-u8", weight_cap=30)
    world.relays["site-m"].wait(lambda: _committed(world, "site-m") >= 4, "commits updates of quick devices")
    world.relays["site-m"].kill()
    world.start_relay("site-m", "--quorum", "1")
    record = job.result().rounds[-1]
    assert (record.outcome, record.measured) == ("aggregated", len(devices)), world.relays["site-m"].err
    assert record.num_examples == sum(map(examples_of, devices))
    assert all(len(one.requests) == 1 for one in world.sites["site-m"].updates.values())


def _committed(world, site):
    """Updates of the open round of a site."""
    file = world.state_of(site) / "site" / REGISTRY_FILE
    with suppress(fedpatch.FedpatchError), Registry(file, readonly=True) as registry:
        return sum(len(registry.rounds.open_updates(run.id)) for run in registry.runs())
    return 0  # the registry does not exist yet


@pytest.mark.slow
def test_site_that_misses_its_quorum_fails_the_round_with_the_reason(world):
    world.start_site("site-a")
    world.sites["site-a"].updates["a2"].delay_s = 8.0
    summary = world.start_run(
        "world", 1, rounds=1, deadline_s=6.0, recruit_deadline_s=2.0, grace_s=0.0, max_failed_rounds=1
    ).result()
    [record] = summary.rounds
    assert (record.outcome, record.failures) == ("failed", {"deadline": 1})
    world.relays["site-a"].wait_err("the round of the site failed: quorum_missed, 1 of 2 updates")


@pytest.mark.slow
def test_relay_below_a_relay_counts_all_devices_once(world):
    """Hub -> upper -> lower -> devices, and devices at the upper one."""
    world.start_site("site-a", "--max-members", "5", "--min-cohort", "3")
    world.brokers["lower"] = world.stack.enter_context(Mosquitto())
    world.sites["lower"] = world.light(world.brokers["lower"].url, "lower", LOWER)
    world.start_relay("lower", "--up", world.brokers["site-a"].url, "--up-fleet", "site-a")
    [record] = world.start_run("world", 1, rounds=1).result().rounds
    devices = SITES["site-a"] + LOWER
    assert (record.outcome, record.reported, record.measured) == ("aggregated", 1, 4), world.relays["site-a"].err
    assert record.num_examples == sum(map(examples_of, devices))
    assert record.user_accuracy == pytest.approx(statistics.fmean(map(accuracy_of, devices)))


@pytest.mark.slow
def test_evaluate_round_through_a_relay_gives_the_figures_of_a_flat_one(world):
    """The site's two devices weigh twice as much as the device at the hub itself."""
    world.start_site("site-a")
    world.relays["site-a"].wait_err("site: 2 devices")
    world.light(world.hub.url, "world", ["b1"])
    devices = [*SITES["site-a"], "b1"]
    world.light(world.hub.url, "flat", devices)
    found = world.start_run("world", 2, rounds=1, evaluate_every=1).result().rounds[-1]
    flat = world.start_run("flat", len(devices), rounds=1, evaluate_every=1).result().rounds[-1]
    assert (found.outcome, found.reported, found.measured) == ("evaluated", 2, 3), world.relays["site-a"].err
    assert found.user_accuracy == pytest.approx(flat.user_accuracy, rel=1e-12)
    assert (found.measured, found.num_examples) == (flat.measured, flat.num_examples)


@pytest.mark.slow
def test_relay_and_its_site_fetch_the_model_by_url_and_over_mqtt_where_the_server_is_gone(world, nginx):
    """Hub and site share one server; the keys of a fleet begin with its name."""
    served = {"models_store": nginx.store, "models_url": nginx.url}
    options = ["--up-models-ca-file", nginx.ca_file, "--models-store", nginx.store, "--models-url", nginx.url]
    world.start_site("site-a", *options, ca_file=nginx.ca_file)
    by_url = world.start_run("world", 1, rounds=1, **served).result()
    assert by_url.rounds[-1].outcome == "aggregated", world.relays["site-a"].err
    fetched = [one.split("/")[1] for one in nginx.requests if " 206 " in one]
    assert Counter(fetched) == {"world": 1, "site-a": 2}
    nginx.stop()
    by_mqtt = world.start_run("world", 1, rounds=1, **served).result()
    assert by_mqtt.rounds[-1].outcome == "aggregated", world.relays["site-a"].err
    assert f"{nginx.url}world/" in world.relays["site-a"].err
    _assert_same_model(world.model_of("world", by_url.run), world.model_of("world", by_mqtt.run), "fedavg")
    assert world.relays["site-a"].terminate().code == 0
    assert not list(nginx.root.rglob("*/*"))


@pytest.mark.slow
def test_late_update_of_a_site_counts_in_a_later_round(world):
    for site in SITES:
        world.start_site(site)
    world.sites["site-b"].updates["b1"].delay_s = 6.0
    summary = world.start_run(
        "world", 2, rounds=8, late="carry", quorum_updates=1, grace_s=0.0, round_interval_s=2.0, max_staleness=8
    ).result()
    assert [record.outcome for record in summary.rounds] == ["aggregated"] * 8, world.relays["site-b"].err
    assert any(record.buffered and record.buffered.staleness.keys() - {"0"} for record in summary.rounds)


def test_masked_rounds_through_relays_give_the_flat_model_bit_for_bit_though_a_device_is_lost_after_sharing(
    world, monkeypatch
):
    """Two sites; then one site and the devices of the other one at the hub itself. All runs begin with the same base."""
    monkeypatch.setattr(used_base, "moved", lambda tensors, schema, salt: moved(tensors, schema, b""))
    terms = {"secure": "groups", "threshold": "half", "encoding": "masked-u8", "weight_cap": 30, "quorum": 0.8}
    terms |= {"max_members": 20}
    names = [device for devices in MASKED_SITES.values() for device in devices]
    flat_site = world.light(world.hub.url, "flat", names)
    for site in MASKED_SITES:
        world.start_site(site, "--quorum", "0.8")
    for site, devices in MASKED_SITES.items():
        world.relays[site].wait_err(f"site: {len(devices)} devices")
    lost = [site.devices["m3"] for site in (flat_site, world.sites["site-m"])]
    for device in lost:
        device.gives_up_after_sharing = True
    flat = world.start_run("flat", len(names), **terms).result()
    two_levels = world.start_run("world", 2, **terms).result()
    assert not any(device.gives_up_after_sharing for device in lost)
    _assert_same_bits(world, two_levels, flat)

    world.relays["site-n"].terminate()
    world.light(world.hub.url, "world", MASKED_SITES["site-n"])
    lost[1].gives_up_after_sharing = True
    for device in (one for site in world.sites.values() for one in site.devices.values()):
        device.job._context.masking.spent.offered.clear()  # else they would decline a second run from the same base
    mixed = world.start_run("world", 1 + len(MASKED_SITES["site-n"]), **terms).result()
    _assert_same_bits(world, mixed, flat)


def _assert_same_bits(world, found, expected):
    assert [record.outcome for record in found.rounds] == ["aggregated"] * 2, world.relays["site-m"].err
    model = world.model_of("world", found.run)
    for name, values in world.model_of("flat", expected.run).items():
        assert model[name].tobytes() == values.tobytes(), name
    for one, other in zip(found.rounds, expected.rounds, strict=True):
        assert (one.measured, one.num_examples) == (other.measured, other.num_examples)
        assert (one.user_accuracy, one.user_accuracy_histogram) == (other.user_accuracy, other.user_accuracy_histogram)
