"""Names the devices of a fleet that could store no round lately, for the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.storage.database.opening import exists
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason

LAST_ROUNDS = 16
"""A device that fails is left out for some rounds, so the last round alone may not have it."""


def devices_without_storage(state_dir: Path, fleet: str) -> list[str]:
    """Return the devices that declined or failed with `storage` in the last rounds of the fleet, and reported none since.

    Raises:
        StateError: The registry cannot be read.
    """
    path = state_dir / REGISTRY_FILE
    if not exists(path):
        return []
    with Registry(path, readonly=True) as registry:
        last = registry.newest(fleet)
        records = registry.rounds.records(last.id)[-LAST_ROUNDS:] if last is not None else []
        devices = [one for one in registry.devices() if one.fleet == fleet]
    since = _since_last_refusal(records)
    if not since:
        return []
    recovered = {device for record in since for device in record.user_accuracies}
    storage = (DeclineReason.STORAGE, FailReason.STORAGE)
    return sorted(one.id for one in devices if one.last_reason in storage and one.id not in recovered)


def _since_last_refusal(records: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """Return the last round in which a device could not store its work, and the rounds after it."""
    for index in reversed(range(len(records))):
        record = records[index]
        if record.decline_reasons.get(DeclineReason.STORAGE) or record.failures.get(FailReason.STORAGE):
            return records[index:]
    return []
