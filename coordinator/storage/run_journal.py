"""The journal of a run: a second copy of the registry's data of the run, in a text file beside its checkpoints.

    <state directory>/runs/RUN/journal.jsonl

Each line has the first 16 hex digits of the SHA-256 of its JSON, a space, and the JSON:

    {"run": {...}}      the run's row in the registry (coordinator.rounds.run_summary.RunInfo); the last such line counts
    {"round": {...}}    the record of a completed round (RoundRecord); it replaces one with its number
    {"back_to": 12}     the rounds after that number are repeated

Lines are only added. So a registry can be rebuilt from journals, and the doctor can compare registry and journals. A line that
is damaged, or was cut off by a power cut, is left out and reported.

Each change of a run has a number (`changes` of its row in the registry), which its line carries as "change". A journal whose
last number is below the registry's lags: a line could not be written, and the registry is right. The next line is then written
after all missing ones. Where the numbers are equal and values differ, the journal is right, since its lines have checksums.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage.database.value_checks import check_record, check_run
from fedpatch.shared.app.files import append_line, make_directory, read_state, remedy_for
from fedpatch.shared.errors import FedpatchError, StateError, StateUnreadable, problem_and_remedy

FILE = "journal.jsonl"
RUNS = "runs"

_DIGEST_HEX = 16
_LINE = re.compile(rb"([0-9a-f]{16}) (\{.*\})")

_log = logging.getLogger("fedpatch.registry")


@dataclass
class RunHistory:
    """The content of a journal.

    Attributes:
        run: The run's row as it was last written; None without an undamaged line that has it.
        records: Records by round.
        damaged_lines: Numbers of the damaged lines.
        changes: Number of its last change; 0 without a change.
        forgotten_after: The last round before those that were rolled back and not repeated since; None if there are none.
    """

    run: RunInfo | None = None
    records: dict[int, RoundRecord] = field(default_factory=dict)
    damaged_lines: list[int] = field(default_factory=list)
    changes: int = 0
    forgotten_after: int | None = None

    def take(self, entry: Mapping[str, Any]) -> None:
        """Apply one line; raise ValueError, TypeError or KeyError for a line that `RunJournal` does not write."""
        changes = _count(entry.get("change", self.changes))
        if "run" in entry:
            run = RunInfo(**entry["run"])
            check_run(run)
            self.run = run
        elif "round" in entry:
            record = RoundRecord.from_dict(entry["round"])
            check_record(record, record.round)
            self.records[record.round] = record
            if self.forgotten_after is not None:
                self.forgotten_after = max(self.forgotten_after, record.round)
        else:
            last = _count(entry["back_to"])
            self.records = {number: record for number, record in self.records.items() if number <= last}
            self.forgotten_after = last if self.forgotten_after is None else min(self.forgotten_after, last)
        self.changes = changes


@dataclass(frozen=True)
class Known:
    """The registry's data of a run: its row, its records, and the number of its last change."""

    run: RunInfo
    records: Sequence[RoundRecord]
    changes: int


class RunJournal:
    """The journals of all runs of a state directory. Errors of the disk are logged and end no run.

    Args:
        state_dir: The state directory.
        known: Returns the registry's data of a run.

    Attributes:
        before_write: Called before each write; its exception prevents the write.
    """

    def __init__(self, state_dir: Path, known: Callable[[str], Known]) -> None:
        self.directory = state_dir / RUNS
        self.before_write: Callable[[], None] = lambda: None
        self._known = known
        self._reached: dict[str, int] = {}

    def path(self, run: str) -> Path:
        """Return the path of a run's journal."""
        return self.directory / run / FILE

    def write_run(self, run: RunInfo, change: int) -> None:
        """Add a line with the run's row; `change` is the number of the change."""
        self._write(run.id, {"run": _run_to_dict(run)}, change)

    def write_round(self, run: str, record: RoundRecord, change: int) -> None:
        """Add a line with the record of a round.

        Args:
            change: Number of the change.
        """
        self._write(run, {"round": record.to_dict()}, change)

    def write_back_to(self, run: str, last: int, change: int) -> None:
        """Add a line that drops the rounds after `last`.

        Args:
            last: Number of the last round that stays.
            change: Number of the change.
        """
        self._write(run, {"back_to": last}, change)

    def bring_up_to_date(self, run: str) -> None:
        """Add the registry's data that the journal lacks: all of it for a run without a journal.

        A record in the journal is replaced only if the journal lags.
        """
        history = self._read(run)
        if history is None:
            return
        known = self._known(run)
        kept = {record.round: record for record in known.records}
        last = max(kept, default=0)
        entries: list[dict[str, Any]] = []
        if any(number > last for number in history.records):
            entries.append({"back_to": last})
        for number, record in sorted(kept.items()):
            written = history.records.get(number)
            if written is None or (history.changes < known.changes and written != record):
                entries.append({"round": record.to_dict()})
        if entries or (history.run, history.changes) != (known.run, known.changes):
            # The run's row is last and has the number of the change: a journal that is cut off before it still lags.
            self._append(run, [*entries, {"run": _run_to_dict(known.run)}], known.changes)

    def _write(self, run: str, entry: Mapping[str, Any], change: int) -> None:
        if run not in self._reached and (history := self._read(run)) is not None:
            self._reached[run] = history.changes
        if self._reached.get(run) == change - 1:
            self._append(run, [entry], change)
        else:
            self.bring_up_to_date(run)

    def _read(self, run: str) -> RunHistory | None:
        try:
            return read_journal(self.path(run))
        except FileNotFoundError:
            return RunHistory()
        except StateUnreadable as error:
            words = "the run goes on, and the registry alone has its changes until the journal can be read"
            _log.warning("%s; %s", problem_and_remedy(str(error))[0], words)
            return None
        except (OSError, StateError) as error:
            _log.warning("%s", error)
            return None

    def _append(self, run: str, entries: Sequence[Mapping[str, Any]], change: int) -> None:
        path = self.path(run)
        lines = [*entries[:-1], {**entries[-1], "change": change}]
        self.before_write()
        try:
            for directory in (self.directory, path.parent):
                make_directory(directory)
            append_line(path, b"".join(map(_encoded, lines)), durable=True)
            self._reached[run] = change
        except (OSError, FedpatchError) as error:
            words = (
                f"{error.strerror}; {remedy_for(error, 'make it writable')}" if isinstance(error, OSError) else error
            )
            _log.warning(
                "%s: not written: %s; the registry alone has it until a later line can be written", path, words
            )


def read_journal(path: Path) -> RunHistory:
    """Read a journal; raise FileNotFoundError if there is none, StateUnreadable if it cannot be read now."""
    history = RunHistory()
    for number, line in enumerate(read_state(path).split(b"\n"), 1):
        if not line:
            continue
        match = _LINE.fullmatch(line)
        try:
            if match is None or _digest(match[2]) != match[1]:
                raise ValueError("its checksum does not fit")
            history.take(json.loads(match[2]))
        except (ValueError, TypeError, KeyError, RecursionError, StateError):
            history.damaged_lines.append(number)
    return history


def journals(state_dir: Path) -> list[Path]:
    """Return the journals of all runs of a state directory, by run."""
    return sorted((state_dir / RUNS).glob(f"*/{FILE}"))


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r:.100} is no count")
    return value


def _encoded(entry: Mapping[str, Any]) -> bytes:
    text = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode()
    return _digest(text) + b" " + text + b"\n"


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_DIGEST_HEX].encode()


def _run_to_dict(run: RunInfo) -> dict[str, Any]:
    plain = asdict(run)
    return {one.name: plain[one.name] for one in fields(RunInfo)} | {"settings": dict(run.settings)}
