"""The text of a round: one line, or a row of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from fedpatch.coordinator.rounds.far_updates import unusual_devices
from fedpatch.coordinator.rounds.learning_alone import headline
from fedpatch.coordinator.rounds.round_record import RoundRecord, buffered_words, privacy_words
from fedpatch.shared.app.formatting import accuracy, counted, duration, size

_MAX_NAMED = 3

if TYPE_CHECKING:
    from fedpatch.coordinator.observability.status_message import StatusMessage


def evaluation_words(record: RoundRecord) -> str:
    """Return the figures of an evaluate round in words; "" for another round, or if no device measured."""
    if not record.is_evaluation or not record.measured:
        return ""
    tenth, worst = ("10th percentile", "min") if record.metric_goal == "max" else ("90th percentile", "worst")
    figures = ((record.user_accuracy, "mean"), (record.user_accuracy_p10, tenth), (record.user_accuracy_min, worst))
    named = ", ".join(f"{accuracy(value)} {word}" for value, word in figures)
    return f"{record.label} {named}, of {record.measured} devices"


def troubles(record: RoundRecord) -> list[str]:
    """List why invited devices are missing from the round or weigh less, for example `declined: unwilling 2`."""
    counts = (
        ("declined", record.decline_reasons),
        ("failed", record.failures),
        ("refused", record.refused),
    )
    words = [f"{word}: {counted(reasons)}" for word, reasons in counts if reasons]
    words += [pulled_words] if (pulled_words := _pulled_words(record)) else []
    words += [f"{record.late} late"] if record.late else []
    words += [f"absent: {_absent(record)}"] if record.absent else []
    words += [f"not asked again: {_named(record.offenders)}"] if record.offenders else []
    if 0 < record.measured < record.needed <= record.reported:
        words.append(f"user accuracy of {record.measured} devices only, which is below the quorum of {record.needed}")
    words += [headline(record.independent, record.label)] if record.independent else []
    words += [privacy_words(record.privacy)] if record.privacy else []
    words += [words_of_carried] if (words_of_carried := buffered_words(record.buffered)) else []
    return words


def _absent(record: RoundRecord) -> str:
    """Name the devices that missed most rounds in a row and count the others."""
    first = sorted(record.absent.items(), key=lambda one: (-one[1], one[0]))[:_MAX_NAMED]
    names = ", ".join(f"{device} ({missed} in a row)" for device, missed in first)
    more = len(record.absent) - len(first)
    return f"{names} and {more} more" if more else names


def _named(offenders: Mapping[str, str]) -> str:
    first = [f"{device} ({offence})" for device, offence in sorted(offenders.items())[:_MAX_NAMED]]
    more = len(offenders) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _pulled_words(record: RoundRecord) -> str:
    """Name the unusual devices: `pulled far: pi-3 (92% of its change: weights; 7 rounds in a row)`; "" for none."""
    far = sorted((-record.pulls[device], device) for device in unusual_devices(record.far, record.pulls))
    named = []
    for pull, device in far[:_MAX_NAMED]:
        parts = ", ".join(record.bounded_devices.get(device, ()))
        rounds = f"; {record.far[device]} rounds in a row" if record.far[device] > 1 else ""
        named.append(f"{device} ({-pull:.0%} of its change{f': {parts}' if parts else ''}{rounds})")
    more = len(far) - len(named)
    return f"pulled far: {', '.join(named)}{f' and {more} more' if more else ''}" if named else ""


def round_line(record: RoundRecord, rounds: int) -> str:
    """Format a round as one line; `rounds` is the largest number of rounds of the run."""
    parts = [f"{record.reported}/{record.cohort} reported"]
    if record.user_accuracy is not None:
        word = "min" if record.metric_goal == "max" else "worst"
        worst = "" if record.user_accuracy_min is None else f" ({word} {accuracy(record.user_accuracy_min)})"
        parts.append(f"{record.label} {accuracy(record.user_accuracy)}{worst}")
    parts.append(duration(record.seconds))
    parts += [f"{size(record.bytes_down)} down", f"{size(record.bytes_up)} up"]
    return f"round {record.round}/{rounds} {record.outcome_words}: {', '.join(parts + troubles(record))}"


def rounds_table(records: Sequence[RoundRecord] = ()) -> Table:
    """Make an empty table for `add_round`.

    The column UA is user accuracy before the training of the round, "UA after" the one after it. If the metric of `records` is
    not accuracy, its name replaces UA.
    """
    label, word = (
        (records[-1].label, "min" if records[-1].metric_goal == "max" else "worst") if records else ("UA", "min")
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("round", justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for heading in ("reported", label, f"{label} {word}", f"{label} after", "time", "down", "up"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def add_round(table: Table, record: RoundRecord) -> None:
    """Add a completed round as a row."""
    table.add_row(
        str(record.round),
        record.outcome_words,
        f"{record.reported}/{record.cohort}",
        accuracy(record.user_accuracy),
        accuracy(record.user_accuracy_min),
        accuracy(record.user_accuracy_after),
        duration(record.seconds),
        size(record.bytes_down),
        size(record.bytes_up),
        style="red" if record.failure else None,
    )


def add_open_round(table: Table, message: StatusMessage) -> None:
    """Add the open round as a row."""
    status = message.status
    table.add_row(
        str(message.round),
        status.phase,
        f"{status.reported}/{status.cohort}",
        accuracy(status.user_accuracy),
        "",
        "",
        duration(status.elapsed_s),
        size(status.round_bytes_down),
        size(status.round_bytes_up),
        style="cyan",
    )
