"""The journal of a run: what the registry knows of it, once more, in a text file beside its checkpoints.

    <state directory>/runs/RUN/journal.jsonl

Each line is the first 16 hex digits of a SHA-256, a space, and the JSON that the digest is of:

    {"run": {...}}      the run's row in the registry (coordinator.records.RunInfo); the last such line counts
    {"round": {...}}    the record of a round that is over (RoundRecord); it replaces one of its number
    {"back_to": 12}     the rounds after that one are played again

Lines are only added. So a registry can be rebuilt from journals, and the doctor can compare the two. A line that is damaged, or
was cut off by a power cut, is left out and named.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from coordinator.records import RoundRecord, RunInfo
from coordinator.registry_values import check_record, check_run
from shared.errors import FedpatchError, StateError
from shared.files import append_durably, make_directory, mend_of

FILE = "journal.jsonl"
RUNS = "runs"

_DIGEST_HEX = 16
_LINE = re.compile(rb"([0-9a-f]{16}) (\{.*\})")

_log = logging.getLogger("fedpatch.registry")


@dataclass
class RunHistory:
    """What a journal holds: the run as it was last written (None: no line of it is whole), its records by round, bad lines."""

    run: RunInfo | None = None
    records: dict[int, RoundRecord] = field(default_factory=dict)
    damaged_lines: list[int] = field(default_factory=list)

    def take(self, entry: Mapping[str, Any]) -> None:
        """Follow one line. ValueError, TypeError or KeyError where it is none that `RunJournal` writes."""
        if "run" in entry:
            run = RunInfo(**entry["run"])
            check_run(run)
            self.run = run
        elif "round" in entry:
            record = RoundRecord.from_dict(entry["round"])
            check_record(record, record.round)
            self.records[record.round] = record
        else:
            last = int(entry["back_to"])
            self.records = {number: record for number, record in self.records.items() if number <= last}


class RunJournal:
    """The journals of all runs of a state directory. What the disk refuses is logged: it ends no run."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / RUNS

    def path(self, run: str) -> Path:
        """Where the journal of a run is."""
        return self.directory / run / FILE

    def write_run(self, run: RunInfo) -> None:
        """The run's row has changed."""
        self._write(run.id, {"run": _run_to_dict(run)})

    def write_round(self, run: str, record: RoundRecord) -> None:
        """A round is over."""
        self._write(run, {"round": record.to_dict()})

    def write_back_to(self, run: str, last: int) -> None:
        """The rounds after `last` are forgotten."""
        self._write(run, {"back_to": last})

    def bring_up_to_date(self, run: RunInfo, records: Iterable[RoundRecord]) -> None:
        """Add what the registry knows and the journal lacks: all of it for a run that has none yet.

        A record that the journal holds is not replaced: of two that differ, the one with a checksum is right.
        """
        try:
            known = read_journal(self.path(run.id))
        except FileNotFoundError:
            known = RunHistory()
        except OSError as error:
            _log.warning("%s: cannot be read: %s", self.path(run.id), error.strerror)
            return
        if known.run != run:
            self.write_run(run)
        kept = {record.round: record for record in records}
        last = max(kept, default=0)
        if any(number > last for number in known.records):
            self.write_back_to(run.id, last)
        for number, record in sorted(kept.items()):
            if number not in known.records:
                self.write_round(run.id, record)

    def _write(self, run: str, entry: Mapping[str, Any]) -> None:
        path = self.path(run)
        try:
            for directory in (self.directory, path.parent):
                make_directory(directory)
            append_durably(path, _encoded(entry))
        except (OSError, FedpatchError) as error:
            words = f"{error.strerror}; {mend_of(error, 'make it writable')}" if isinstance(error, OSError) else error
            _log.warning("%s: not written: %s; the registry alone has it until the run is taken up again", path, words)


def read_journal(path: Path) -> RunHistory:
    """What a journal holds; OSError where it cannot be read."""
    history = RunHistory()
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
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
    """Of all runs of a state directory, by run."""
    return sorted((state_dir / RUNS).glob(f"*/{FILE}"))


def _encoded(entry: Mapping[str, Any]) -> bytes:
    text = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode()
    return _digest(text) + b" " + text + b"\n"


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_DIGEST_HEX].encode()


def _run_to_dict(run: RunInfo) -> dict[str, Any]:
    plain = asdict(run)
    return {one.name: plain[one.name] for one in fields(RunInfo)} | {"settings": dict(run.settings)}
