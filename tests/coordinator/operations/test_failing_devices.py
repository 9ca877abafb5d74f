"""The devices that could store no round lately."""

from __future__ import annotations

from typing import Any

import pytest

from fedpatch.coordinator.operations.doctor import _check_device_storage
from fedpatch.coordinator.operations.failing_devices import LAST_ROUNDS, devices_without_storage
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from tests.coordinator.registry_builders import new_run, seen
from tests.support.checkups import quiet_checkup

DECLINED = {"decline_reasons": {"storage": 1}}
FAILED = {"failures": {"storage": 1}}


def played(tmp_path, *rounds: dict[str, Any]) -> None:
    """Write rounds of fleet lab, in which the last reason of device a is storage, of b another."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"fleet": "lab"}).id
        for device, reason in (("a", "storage"), ("b", "unwilling")):
            seen(registry, device)
            registry.count("lab", (device, "declined", reason))
        seen(registry, "a", fleet="other")
        for number, more in enumerate(rounds, 1):
            registry.rounds.finish(run, RoundRecord(number, "aggregated", 2, 1, 1, 1, **more))


@pytest.mark.parametrize("reason", [DECLINED, FAILED])
def test_device_without_storage_in_one_of_the_last_rounds_is_named_and_fails_the_doctor(tmp_path, reason):
    played(tmp_path, reason, {"user_accuracies": {"b": 0.5}})
    assert devices_without_storage(tmp_path, "lab") == ["a"]
    assert devices_without_storage(tmp_path, "other") == []
    checkup = quiet_checkup()
    _check_device_storage(RunSettings(fleet="lab"), tmp_path, checkup)
    (finding,) = checkup.findings
    assert (finding.name, finding.verdict) == ("device_storage", "fail")
    assert finding.detail.startswith("a: could not use their disk or state")


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        [{"user_accuracies": {"b": 0.5}}],
        [DECLINED, {"user_accuracies": {"a": 0.5}}],
        [DECLINED, *[{}] * LAST_ROUNDS],
    ],
    ids=["no round", "none without storage", "reported since", "long ago"],
)
def test_device_that_reported_since_or_failed_long_ago_is_not_named(tmp_path, rounds):
    played(tmp_path, *rounds)
    assert devices_without_storage(tmp_path, "lab") == []


def test_state_directory_without_a_registry_names_no_device(tmp_path):
    assert devices_without_storage(tmp_path, "lab") == []
