"""The rounds of a resumed run: the last completed one, and the one that was open.

The checkpoint decides, since model and record are saved in it together. The registry may be a round behind it, after a crash
between the two, or ahead of it, if the newest checkpoint is damaged. An open round continues only with exactly the model that
its updates were trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements, decode_and_validate_update
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.privacy.privacy_account import PrivacyAccount
from fedpatch.coordinator.rounds.auto_deadline import policy_of
from fedpatch.coordinator.rounds.round_journal import CommittedUpdate, RoundJournal, RoundStart
from fedpatch.coordinator.rounds.round_phases import RETURN_S, RoundPolicy
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.round_record_builder import without_figures
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.runtime.aggregator import requirements_of
from fedpatch.coordinator.runtime.bases_in_memory import KeptBases
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.runtime.used_base import open_base
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import has_checkpoint, load_checkpoint, save_checkpoint
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.coordinator.storage.update_files import drop_round, kept_devices, kept_rounds, load_update
from fedpatch.shared.app.formatting import duration
from fedpatch.shared.errors import StateError, StateUnreadable, UpdateRefused, WireError
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS, SUM_ENCODING
from fedpatch.shared.wire.messages import ENCODINGS

Say = Callable[[str], None]


def reconcile(registry: Registry, run: str, blobs: BlobStore, prepared: Prepared, say: Say) -> None:
    """Bring the registry to the round of the newest undamaged checkpoint, forwards or backwards.

    Raises:
        StateError: No checkpoint is undamaged, or the privacy account is lost, damaged or older than a record.
    """
    if not has_checkpoint(blobs) and not registry.rounds.records(run):
        # The process was killed before it wrote the first checkpoint.
        save_checkpoint(blobs, prepared.initial, prepared.public, {})
    state, _, meta = load_checkpoint(blobs)
    reached = RoundRecord.from_dict(meta["record"]) if "record" in meta else None
    last = reached.round if reached is not None else 0
    records = registry.rounds.records(run)
    _require_account(blobs, [*records, *([] if reached is None else [reached])])
    known = [record.round for record in records if record.outcome == "aggregated"]
    if reached is not None and last > max(known, default=0):
        registry.rounds.finish(run, reached, _still_at_work(registry, run, reached, state.round - 1))
    lost = [number for number in known if number > last]
    if lost:
        # Failed rounds between the lost ones are rolled back too: they changed no model.
        registry.rounds.roll_back(run, lost[0] - 1)
        say(
            f"the model of round {lost[-1]} is damaged or lost; going back to that of round {last}, to repeat later rounds"
        )
    # A crash or a full disk may have left the journal a step behind.
    registry.journal.bring_up_to_date(run)


def _require_account(blobs: BlobStore, records: Iterable[RoundRecord]) -> None:
    """Raise StateError if the privacy account has fewer releases than a record names: epsilon would shrink."""
    releases = max((round(record.privacy.get("all_releases") or 0) for record in records), default=0)
    if releases:
        PrivacyAccount(blobs, releases).require(releases)


def _still_at_work(registry: Registry, run: str, reached: RoundRecord, version: int) -> dict[str, CarriedWork]:
    """Return the carried work after a round whose model is saved, and whose record is not in the registry yet.

    Args:
        reached: The record of the round.
        version: Completed rounds of its base model.
    """
    journal = registry.rounds.unfinished(run, BootTime("", 0.0, 0.0))
    if reached.buffered is None or journal is None or journal.round != reached.round:
        return {}
    committed = {one.device for one in registry.rounds.committed(run, journal.round, journal.carried)}
    works = {device: work for device, work in journal.carried.items() if device not in committed}
    epoch = registry.run(run).epoch
    for device in journal.accepted - committed - works.keys():
        encoding = journal.negotiated.get(device, journal.encoding)
        works[device] = CarriedWork(journal.round, epoch, version, journal.base, encoding)
    return works


def waiting_updates(
    registry: Registry, blobs: BlobStore, spec: RunSpec, prepared: Prepared, say: Say
) -> dict[str, CommittedUpdate]:
    """Return the committed updates that wait for the next version, if no round was open."""
    carried = registry.rounds.carried(spec.run) if spec.carry is not None else {}
    return _kept_updates(registry, blobs, spec, prepared, None, None, carried, say)


def resume_round(
    registry: Registry,
    blobs: BlobStore,
    spec: RunSpec,
    prepared: Prepared,
    state: ServerState,
    say: Say,
    now: BootTime,
) -> RoundStart | None:
    """Return the start of the round that was open, and delete the files of other rounds.

    Args:
        state: The server's state after the last completed round.
        now: The present time, by which the spent seconds of the deadline are computed.

    Returns:
        The round with its committed updates; None if no round was open, or it was open with another model, in an encoding of
        an earlier version, or masked without undamaged terms.
    """
    journal = registry.rounds.unfinished(spec.run, now)
    opening = None
    if journal is not None:
        masking = registry.rounds.masking(spec.run, journal.round)
        # The terms follow from presences, which a restarted coordinator does not have yet. Without them no device was asked.
        has_terms = spec.secure is None or _has_terms(RoundStart(journal, masking=masking))
        is_known = journal.encoding in ("", *ENCODINGS, *MASKED_ENCODINGS)
        base = (
            open_base(state, prepared, spec, RoundStart(journal, masking=masking)) if has_terms and is_known else None
        )
        if base is not None:
            stored = registry.rounds.committed(spec.run, journal.round, journal.carried)
            kept = _kept_updates(registry, blobs, spec, prepared, base, journal, journal.carried, say)
            # If an update is lost, its device is invited again, so the round collects again.
            # A lost masked update loses its group only.
            closing = journal.closing and (len(kept) == len(stored) or bool(masking))
            opening = RoundStart(replace(journal, closing=closing), kept, masking)
            say(_in_words(opening, policy_of(spec, registry.rounds.records(spec.run))))
        else:
            how = "with another model" if has_terms else "without its masked terms"
            how = how if is_known else f"in encoding {journal.encoding}, which only earlier versions have"
            say(f"round {journal.round} was open {how}; it starts again")
            registry.rounds.roll_back(spec.run, journal.round - 1)
    needed = {work.round for work in registry.rounds.carried(spec.run).values()}
    needed |= {opening.journal.round} if opening is not None else set()
    for number in kept_rounds(blobs):
        _report_lost(registry, blobs, spec.run, number, say)
        if number not in needed:
            drop_round(blobs, number)
    return opening


def rest_of_pause(meta: Mapping[str, Any], spec: RunSpec, now: BootTime) -> float:
    """Return the seconds until the next round may begin by `round_interval_s`; 0 if a round may begin at once.

    Args:
        meta: Meta of the newest checkpoint (coordinator.storage.checkpoint.pause_of).
    """
    if spec.evaluates_only or "pause" not in meta:
        return 0.0
    try:
        rest_s, boot, uptime_s, unix_s = meta["pause"]
        rest_s = float(rest_s) - now.since(BootTime(str(boot), float(uptime_s), float(unix_s)))
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, min(rest_s, spec.round_interval_s))


def seen_devices(registry: Registry, spec: RunSpec, fleet: str, now: float) -> list[str]:
    """Return the devices that were seen with the run's task since the run started; they count although they may be offline.

    Args:
        now: The present unix time.
    """
    return _seen_since(registry, spec, fleet, spec.run, now)


def _seen_since(registry: Registry, spec: RunSpec, fleet: str, run: str, now: float) -> list[str]:
    """Return the devices that were seen with the task since a run started.

    If the clock was ahead at its start, its true time is unknown: then these are the devices that were seen since the start of
    the run before it.
    """
    newest_first = dropwhile(lambda one: one.id != run, registry.runs())
    begun_at = next((one.created_at for one in newest_first if one.created_at <= now), 0.0)
    known = (device for device in registry.devices() if device.fleet == fleet and device.last_seen >= begun_at)
    return [device.id for device in known if spec.task in device.tasks]


def devices_of_last_run(registry: Registry, spec: RunSpec, fleet: str, now: float) -> list[str]:
    """Return the devices that were seen with the run's task since the fleet's run before this one started.

    Args:
        now: The present unix time.
    """
    others = (run for run in registry.runs() if run.id != spec.run and run.settings.get("fleet") == fleet)
    before = next((run for run in others if run.task == spec.task), None)
    return [] if before is None else _seen_since(registry, spec, fleet, before.id, now)


def _kept_updates(
    registry: Registry,
    blobs: BlobStore,
    spec: RunSpec,
    prepared: Prepared,
    state: ServerState | None,
    journal: RoundJournal | None,
    carried: Mapping[str, CarriedWork],
    say: Say,
) -> dict[str, CommittedUpdate]:
    """Read the committed updates: updates of the open round, whose model is `state`, and results of carried work."""
    kept: dict[str, CommittedUpdate] = {}
    bases = KeptBases(blobs, prepared, spec)
    number = None if journal is None else journal.round
    for update in registry.rounds.committed(spec.run, number, carried):
        work = None if update.round == number else carried[update.device]
        try:
            if work is None:
                assert journal is not None
                assert state is not None
                terms = requirements_of(prepared, spec, journal.base, state.tensors)
            else:
                terms = requirements_of(prepared, spec, work.base, bases.of(work))
            found = replace(_read_back(blobs, update, terms), work=work)
            kept[update.device] = (
                found if spec.privacy is None else replace(found, report=without_figures(found.report))
            )
        except StateUnreadable:
            raise  # the update was acknowledged: a later resume reads it
        except (StateError, UpdateRefused) as error:
            # Its device is invited again, like each device that has not reported.
            say(f"the update of {update.device} in round {update.round} cannot be read: {error}")
            registry.rounds.drop_update(spec.run, update.round, update.device)
    return kept


def _has_terms(opening: RoundStart) -> bool:
    try:
        terms, _ = opening.terms, opening.measures
    except WireError:
        return False
    return terms is not None


def _report_lost(registry: Registry, blobs: BlobStore, run: str, number: int, say: Say) -> None:
    """Report update files without a row: a process was killed before it wrote the row, or the registry is damaged."""
    if number in {record.round for record in registry.rounds.records(run)}:
        return
    known = {update.device for update in registry.rounds.updates(run, number)}
    for device in sorted(set(kept_devices(blobs, number)) - known):
        say(f"the update of {device} in round {number} is not in the registry; its device is asked again")


def _read_back(blobs: BlobStore, update: StoredUpdate, terms: UpdateRequirements) -> CommittedUpdate:
    blob = load_update(blobs, update.round, update.device)
    if update.encoding in (*MASKED_ENCODINGS, SUM_ENCODING):
        return CommittedUpdate(update.digest, len(blob), None)
    report, _ = decode_and_validate_update(blob, terms, encoding=update.encoding, raw_bytes=update.raw_bytes)
    return CommittedUpdate(update.digest, len(blob), report)


def _in_words(opening: RoundStart, policy: RoundPolicy) -> str:
    journal = opening.journal
    have = f"round {journal.round} goes on with {len(opening.updates)} of {journal.target} updates"
    if journal.closing:
        return f"{have}: all that were collected"
    left_s = max(0.0, policy.deadline_s - journal.spent_s)
    return f"{have}, {left_s:.0f} s to its deadline"


def return_words(spec: RunSpec, unfinished: RoundStart | None) -> str:
    """Return what a resumed run waits for before its next round; "" for a new run and for an open round.

    Args:
        unfinished: The open round.
    """
    if spec.epoch == 1 or unfinished is not None:
        return ""
    longest = duration(min(RETURN_S, spec.wait_s))
    return f"the next round begins when the devices are back, at the latest after {longest} if enough are back by then"
