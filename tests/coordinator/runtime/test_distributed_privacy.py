"""Masked rounds with noise of the devices: the released sum, the account, and a restart."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.masked_mean import private_masked_mean
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.blobs.blob_store import FileBlobs
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.privacy import private_aggregation
from fedpatch.coordinator.privacy.privacy_account import PrivacyAccount
from fedpatch.coordinator.privacy.private_aggregation import PrivateAggregation
from fedpatch.coordinator.rounds.run_events import DevicePresence
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.shared.errors import UsageError
from fedpatch.shared.masking.masked_blob import MaskedUpdate
from fedpatch.shared.masking.private_vector import signed_sum
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.codec import from_bytes, to_bytes
from fedpatch.shared.wire.features import DEVICE_FEATURES, MASKED_FEATURE
from fedpatch.shared.wire.messages import Offer
from tests.coordinator.effect_runners import Bench
from tests.coordinator.masked_fleets import TERMS, Clock, MaskedDevice, MaskedFleet, names
from tests.coordinator.private_bench import prepare_private
from tests.coordinator.registry_builders import new_run
from tests.coordinator.runtime.test_kill_anywhere import Guillotine, Killed
from tests.coordinator.runtime.test_resumed_rounds import checkpoint_names
from tests.support.specs import there

PRIVATE = {
    **TERMS,
    "private": "all",
    "encoding": "masked-u16",
    "weight_cap": None,
    "dp": "distributed",
    "noise_multiplier": 1.7,
    "dp_clip": 0.5,
    "devices": 16,
    "quorum": 0.5,
    "rounds": 1,
}


@pytest.fixture
def means(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Array]]:
    """Records each released mean before the model's step is quantised for the download."""
    found: list[dict[str, Array]] = []
    real = private_masked_mean

    def noted(*given: Any, **more: Any) -> dict[str, Array]:
        found.append(real(*given, **more))
        return found[-1]

    monkeypatch.setattr(private_aggregation, "private_masked_mean", noted)
    return found


@pytest.fixture
def registry(tmp_path: Path) -> Any:
    """The registry of the run."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        yield registry


@pytest.fixture
def fleet(tmp_path: Path, registry: Registry, clock: Clock) -> MaskedFleet:
    """Sixteen devices in two groups, none of which is online yet."""
    return MaskedFleet(Bench(tmp_path, prepare_private(), registry, new_run(registry).id, **PRIVATE), clock)


def expected(fleet: MaskedFleet, counted: list[str]) -> Array:
    """Return the sum of the noised vectors of these devices, divided by the number of devices that the round was meant for."""
    policy = fleet.bench.engine.spec.privacy
    assert policy is not None
    total = np.sum([signed_sum(fleet.devices[name].elements[1]) for name in counted], axis=0)
    mean: Array = total * (policy.clip / policy.steps / 16)
    return mean


def released(fleet: MaskedFleet, mean: dict[str, Array]) -> Array:
    schema, initial = fleet.bench.prepared.travelling, fleet.bench.prepared.initial.tensors
    return np.concatenate([(mean[name] - initial[name]).reshape(-1) for name in schema.names])


def records(fleet: MaskedFleet) -> list[Any]:
    return fleet.bench.registry.rounds.records(fleet.bench.engine.spec.run)


def test_released_mean_is_the_noised_sum_of_both_groups_over_the_fixed_denominator(fleet, means):
    fleet.come()
    [mean] = means
    assert released(fleet, mean) == pytest.approx(expected(fleet, names(16)), abs=1e-6)


def test_lost_devices_change_neither_the_denominator_nor_the_noise_below_the_claim(fleet, means):
    lost: set[str] = set()

    def lose(device: str, answer: Any) -> Any:
        if isinstance(answer, Offer) and len(lost) < 3:
            lost.add(device)
            fleet.lost.add(device)
        return answer

    fleet.change = lose
    fleet.come().wait(700.0)
    [mean] = means
    counted = [name for name in names(16) if name not in lost]
    assert released(fleet, mean) == pytest.approx(expected(fleet, counted), abs=1e-6)


def test_record_has_the_account_and_no_figure_of_the_devices(fleet):
    fleet.come()
    [record] = records(fleet)
    policy = fleet.bench.engine.spec.privacy
    assert (record.outcome, record.reported) == ("aggregated", 16)
    assert record.privacy == {
        "epsilon": policy.epsilon(1),
        "delta": 1e-5,
        "rounds": 1,
        "all_releases": 1,
        "noise_multiplier": 1.7,
    }
    figures = (record.user_accuracy, record.train_loss, record.user_accuracy_histogram, record.num_examples)
    assert figures == (None, None, (), 0)


def test_noise_of_a_device_is_that_of_its_threshold_and_the_same_after_a_restart(fleet):
    """A device erases its secrets when it reveals, so the test reads the noise when the device makes its update."""
    drawn = {}

    def note(device: MaskedDevice, elements: Array) -> Array:
        assert device.request is not None and device.request.privacy is not None
        terms, state = device.request.privacy, device.rounds.state
        again = MaskingRounds(device.name, bytes, from_bytes(to_bytes(state), type(state)))
        drawn[device.name] = (device.rounds.noise(terms), again.noise(terms), terms)
        return elements

    for device in fleet.devices.values():
        device.spoil = partial(note, device)
    fleet.come()
    assert {noise.seed for noise, _, _ in drawn.values()} == {again.seed for _, again, _ in drawn.values()}
    assert len({noise.seed for noise, _, _ in drawn.values()}) == 16
    assert all(noise.variance == pytest.approx((1.7 * terms.steps) ** 2 / 5) for noise, _, terms in drawn.values())


def test_device_that_does_not_know_noise_under_masks_is_not_asked(fleet):
    engine = fleet.bench.engine
    for device, features in (("old", DEVICE_FEATURES[:2]), ("new", DEVICE_FEATURES)):
        present = replace(there(), features=(*features, MASKED_FEATURE))
        fleet.bench.perform(engine.handle(DevicePresence(device, present), fleet.clock.now))
    assert engine.fleet.eligible() == ["new"]


@pytest.mark.medium
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_before_any_write_releases_the_same_sum_and_counts_it_once(tmp_path, clock, every):
    results, fatal = set(), 0
    while True:
        directory, run, kills = tmp_path / str(fatal), "", 0
        devices: dict[str, MaskedDevice] = {}
        directory.mkdir()
        for write in (fatal, 0) if fatal else (0,):
            guillotine = Guillotine(write)
            with Registry(directory / REGISTRY_FILE) as registry, pytest.MonkeyPatch.context() as patch:
                run = run or new_run(registry, suffix="0a1b2c").id
                guillotine.installed(patch)
                try:
                    terms = {**PRIVATE, "devices": 9, "group_size": 9}
                    fleet = MaskedFleet(Bench(directory, prepare_private(), registry, run, **terms), clock, 9, devices)
                    devices = fleet.devices
                    fleet.come().wait(400.0)
                except Killed:
                    kills += 1
                    continue
                [record] = registry.rounds.records(run)
        tensors = load_checkpoint(directory)[0].tensors
        results.add(b"".join(tensors[name].tobytes() for name in sorted(tensors)))
        assert (record.outcome, record.privacy["rounds"], PrivacyAccount(directory).most_used) == ("aggregated", 1, 1)
        assert len(results) == 1, f"killed before write {fatal}"
        if fatal and not kills:
            return
        fatal += every


def test_round_repeated_because_its_checkpoint_is_damaged_counts_as_a_second_release(fleet, clock):
    fleet.come()
    blobs = fleet.bench.blobs
    newest = checkpoint_names(fleet.bench)[-1]
    blobs.put(newest, blobs.get(newest)[:-1])
    repeated = MaskedFleet(fleet.bench.again(), clock)
    for device in repeated.devices.values():
        device.rounds = MaskingRounds(device.name, random.Random(f"again {device.name}").randbytes)
    repeated.come()
    [record] = records(repeated)
    assert (record.round, record.outcome) == (1, "aggregated")
    assert (record.privacy["rounds"], PrivacyAccount(blobs).most_used) == (2, 2)


def test_run_beyond_its_epsilon_releases_nothing(tmp_path):
    policy, prepared = PrivacyPolicy(1.7, 0.5, max_epsilon=1.0, steps=300), prepare_private()
    private = PrivateAggregation(FileBlobs(tmp_path), tmp_path, policy, prepared.travelling, 0)
    groups = [OpenGroup(("pi-1", "pi-2"), ())]
    with pytest.raises(UsageError, match="max_epsilon is 1"):
        private.aggregate_masked(prepared.initial, groups, _no_update, 16)
    assert PrivacyAccount(tmp_path).most_used == 0


def _no_update(device: str) -> MaskedUpdate:
    raise AssertionError(f"the update of {device} is read")
