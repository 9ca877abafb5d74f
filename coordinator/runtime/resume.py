"""Resuming a run: the last completed round, and the round that was open.

The checkpoint decides, since model and record are saved in it together. The registry may be a round behind it, after a crash
between the two, or ahead of it, if the newest checkpoint is damaged. An open round continues only with the very model that its
updates were trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fedpatch.coordinator.aggregation.limit_settings import Limits
from fedpatch.coordinator.aggregation.strategies import ServerState
from fedpatch.coordinator.aggregation.update_validation import UpdateRequirements, decode_and_validate_update
from fedpatch.coordinator.rounds.participant_transitions import CommittedUpdate, RoundJournal, RoundStart
from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.round_record_builder import without_figures
from fedpatch.coordinator.rounds.run_records import RoundRecord, StoredUpdate
from fedpatch.coordinator.rounds.run_spec import RunSpec, policy_of, whole_model_encoding
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import (
    drop_round,
    has_checkpoint,
    kept_devices,
    kept_rounds,
    load_checkpoint,
    load_update,
    save_checkpoint,
)
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.shared.errors import StateError, UpdateRefused
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS
from fedpatch.shared.wire.messages import Manifest

Say = Callable[[str], None]


def reconcile(registry: Registry, run: str, directory: Path, prepared: Prepared, say: Say) -> None:
    """Bring the registry to the round of the newest undamaged checkpoint, forwards or backwards.

    Args:
        registry: The coordinator's registry.
        run: Name of the run.
        directory: Directory of the run.
        prepared: The parts of the run that follow from its settings.
        say: Takes a message for the operator.
    """
    if not has_checkpoint(directory) and not registry.rounds.records(run):
        # The process was killed before it wrote the first checkpoint.
        save_checkpoint(directory, prepared.initial, prepared.public, {})
    meta = load_checkpoint(directory)[2]
    reached = RoundRecord.from_dict(meta["record"]) if "record" in meta else None
    last = reached.round if reached is not None else 0
    known = [record.round for record in registry.rounds.records(run) if record.outcome == "aggregated"]
    if reached is not None and last > max(known, default=0):
        registry.rounds.finish(run, reached)
    lost = [number for number in known if number > last]
    if lost:
        # Failed rounds between the lost ones are rolled back too: they changed no model.
        registry.rounds.roll_back(run, lost[0] - 1)
        say(
            f"the model of round {lost[-1]} is damaged or lost; going back to that of round {last}, to repeat later rounds"
        )
    # A crash or a full disk may have left the journal a step behind.
    registry.journal.bring_up_to_date(run)


def resume_round(
    registry: Registry,
    directory: Path,
    spec: RunSpec,
    prepared: Prepared,
    state: ServerState,
    say: Say,
    now: BootTime,
) -> RoundStart | None:
    """Return the start of the round that was open, and delete the files of other rounds.

    Args:
        registry: The coordinator's registry.
        directory: Directory of the run.
        spec: The terms of the run.
        prepared: The parts of the run that follow from its settings.
        state: The server's state after the last completed round.
        say: Takes a message for the operator.
        now: The present time, by which the spent seconds of the deadline are computed.

    Returns:
        The round with its committed updates; None if no round was open, or it was open with another model.
    """
    ledger = registry.rounds.unfinished(spec.run, now)
    opening = None
    if ledger is not None:
        _, model = pack_model(state, prepared, spec)
        if model.digest == ledger.base:
            stored = registry.rounds.updates(spec.run, ledger.round)
            masking = registry.rounds.masking(spec.run, ledger.round)
            kept = _kept_updates(registry, directory, spec, prepared, state, ledger, say)
            # If an update is lost, its device is invited again, so the round collects again.
            # A lost masked update loses its group only.
            closing = ledger.closing and (len(kept) == len(stored) or bool(masking))
            opening = RoundStart(replace(ledger, closing=closing), kept, masking)
            say(_in_words(opening, policy_of(spec, registry.rounds.records(spec.run))))
        else:
            say(f"round {ledger.round} was open with another model; it starts again")
            registry.rounds.roll_back(spec.run, ledger.round - 1)
    for number in kept_rounds(directory):
        _report_lost(registry, directory, spec.run, number, say)
        if opening is None or number != opening.ledger.round:
            drop_round(directory, number)
    return opening


def seen_devices(registry: Registry, spec: RunSpec, fleet: str) -> list[str]:
    """Return the devices that were seen with the run's task since the run started; they count although they may be offline.

    Args:
        registry: The coordinator's registry.
        spec: The terms of the run.
        fleet: Name of the fleet.
    """
    begun_at = registry.run(spec.run).created_at
    known = (device for device in registry.devices() if device.fleet == fleet and device.last_seen >= begun_at)
    return [device.id for device in known if spec.task in device.tasks]


def pack_model(state: ServerState, prepared: Prepared, spec: RunSpec) -> tuple[bytes, Manifest]:
    """Pack the whole global model; equal states give equal bytes. With a delta encoding it is packed without loss.

    Args:
        state: The server's state.
        prepared: The parts of the run that follow from its settings.
        spec: The terms of the run.

    Returns:
        The packed model and its manifest.
    """
    travelling = prepared.travelling
    packed = pack(state.tensors, travelling, {"round": state.round + 1}, whole_model_encoding(spec.encoding))
    return packed.blob, packed.manifest(spec.chunk_bytes, travelling)


def terms_of(prepared: Prepared, base: str, *, model: Mapping[str, Array] | None, limits: Limits) -> UpdateRequirements:
    """Return the requirements of an update.

    Args:
        prepared: The parts of the run that follow from its settings.
        base: Digest of the round's global model.
        model: Its tensors by name; None if they are not known.
        limits: The bounds of the run.
    """
    metric, plan = prepared.task.metric_terms, prepared.plan
    return UpdateRequirements(prepared.travelling, prepared.private_names, base, metric, model, plan, limits)


def _kept_updates(
    registry: Registry,
    directory: Path,
    spec: RunSpec,
    prepared: Prepared,
    state: ServerState,
    ledger: RoundJournal,
    say: Say,
) -> dict[str, CommittedUpdate]:
    kept: dict[str, CommittedUpdate] = {}
    terms = terms_of(prepared, ledger.base, model=state.tensors, limits=spec.limits)
    for update in registry.rounds.updates(spec.run, ledger.round):
        try:
            found = _read_back(directory, update, terms)
            kept[update.device] = (
                found if spec.privacy is None else replace(found, report=without_figures(found.report))
            )
        except (StateError, UpdateRefused) as error:
            # Its device is invited again, like each device that has not reported.
            say(f"the update of {update.device} in round {ledger.round} cannot be read: {error}")
            registry.rounds.drop_update(spec.run, ledger.round, update.device)
    return kept


def _report_lost(registry: Registry, directory: Path, run: str, number: int, say: Say) -> None:
    """Report update files without a row: of a process that was killed before the row, or of a damaged registry."""
    if number in {record.round for record in registry.rounds.records(run)}:
        return
    known = {update.device for update in registry.rounds.updates(run, number)}
    for device in sorted(set(kept_devices(directory, number)) - known):
        say(f"the update of {device} in round {number} is not in the registry; its device is asked again")


def _read_back(directory: Path, update: StoredUpdate, terms: UpdateRequirements) -> CommittedUpdate:
    blob = load_update(directory, update.round, update.device)
    if update.encoding in MASKED_ENCODINGS:
        return CommittedUpdate(update.digest, len(blob), None)
    report, _ = decode_and_validate_update(blob, terms, encoding=update.encoding, raw_bytes=update.raw_bytes)
    return CommittedUpdate(update.digest, len(blob), report)


def _in_words(opening: RoundStart, policy: RoundPolicy) -> str:
    ledger = opening.ledger
    have = f"round {ledger.round} goes on with {len(opening.updates)} of {ledger.target} updates"
    if ledger.closing:
        return f"{have}: all that were collected"
    left_s = max(0.0, policy.deadline_s - ledger.spent_s)
    return f"{have}, {left_s:.0f} s to its deadline"
