"""A run in the registry, and the summary of a run for scripts, whose keys stay the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedpatch.coordinator.rounds.learning_alone import last_comparison, loss_warning, measure_words
from fedpatch.coordinator.rounds.round_record import RoundRecord, finite, last_user_accuracy, training_rounds
from fedpatch.shared.scripting.frames import frame_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class RunSummary:
    """The result of a run, final or so far.

    Args:
        run: Name of the run.
        stopped_because: "target_ua", "max_rounds", "deadline", "interrupted" or "failed".
        user_accuracy: User accuracy of the last aggregated round (`last_user_accuracy`).
        model: Path or URL of the exported global model; "" if there is none.
        rounds: The records of its rounds.
        private: The patch policy, for `loss_warning`; "" if it is not known.

    Example:
        >>> from fedpatch import RunSummary
        >>> RunSummary("20261124-091500-5f3a2c", "max_rounds", 0.97, "model.npz", rounds=())
        <RunSummary 20261124-091500-5f3a2c: max_rounds after 0 rounds, user accuracy 0.970>
    """

    run: str
    stopped_because: str
    user_accuracy: float | None
    model: str
    rounds: Sequence[RoundRecord]
    private: str = ""

    def __repr__(self) -> str:
        """Return the result in a line: the records of hundreds of rounds would fill a notebook."""
        accuracy = "" if self.user_accuracy is None else f", {measure_words(self.rounds)} {self.user_accuracy:.3f}"
        return f"<RunSummary {self.run}: {self.stopped_because} after {training_rounds(self.rounds)} rounds{accuracy}>"

    @property
    def in_vain(self) -> bool:
        """True if no round succeeded, so that the model is unchanged."""
        return all(record.outcome != "aggregated" for record in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        last = last_comparison(self.rounds)
        return {
            "run": self.run,
            "stopped_because": str(self.stopped_because),
            "user_accuracy": finite(self.user_accuracy),
            "model": self.model,
            "rounds": [record.to_dict() for record in self.rounds],
            "warnings": [warning] if (warning := loss_warning(self.rounds, self.private)) else [],
            "independent": {"round": last.round, **last.to_dict()["independent"]} if last else {},
        }

    def to_json(self) -> str:
        """Return one JSON object, on one line."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_frame(self) -> DataFrame:
        """Return a data frame with a row for each round, indexed by `round`.

        Its columns are the figures of a record, the seconds of each phase (`train_s`, ...) and of the whole round (`seconds`).
        Counts by reason or device are in `rounds`, user accuracies by device in `devices_frame`.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(map(_row, self.rounds), "round")

    def devices_frame(self) -> DataFrame:
        """Return a data frame with the user accuracy of each device in each round: columns `round`, `device`, `user_accuracy`.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(
            {"round": record.round, "device": device, "user_accuracy": value}
            for record in self.rounds
            for device, value in record.user_accuracies.items()
        )


def _row(record: RoundRecord) -> dict[str, Any]:
    """The figures of a record, without counts by name."""
    plain = {key: value for key, value in asdict(record).items() if not isinstance(value, dict | list | tuple)}
    phases = {f"{phase}_s": seconds for phase, seconds in asdict(record.phase_seconds).items()}
    return {**plain, **phases, "seconds": record.seconds}


@dataclass(frozen=True)
class RunInfo:
    """A run in the registry.

    Attributes:
        id: Name of the run.
        created_at: Unix time, in seconds.
        task: Name of the task.
        strategy: Name of the strategy.
        private: The patch policy.
        settings: Public settings by name, without secrets.
        schema: Digest of the whole model's schema.
        epoch: Number of the last process that executed the run.
        status: "running", "finished", "interrupted" or "failed".
        stopped_because: See RunSummary; None in a run that has not ended.
        user_accuracy: See RunSummary.
        model: Path of the exported global model; None if there is none.
    """

    id: str
    created_at: float
    task: str
    strategy: str
    private: str
    settings: Mapping[str, Any]
    schema: str
    epoch: int
    status: str
    stopped_because: str | None
    user_accuracy: float | None
    model: str | None


def end_words(stopped_because: str) -> str:
    """Return the reason for the end of a run in words."""
    words = {"target_ua": "target reached", "max_rounds": "all rounds done", "deadline": "time limit reached"}
    return words.get(stopped_because, stopped_because)


def status_words(info: RunInfo) -> str:
    """Return the status of a run in words."""
    because = info.stopped_because or info.status
    return info.status if because == info.status else f"{info.status} ({end_words(because)})"


def summary_of(info: RunInfo, rounds: Sequence[RoundRecord]) -> RunSummary:
    """Return the summary that the run printed at its end, or the summary so far of a run that has not ended."""
    return RunSummary(
        run=info.id,
        stopped_because=info.stopped_because or info.status,
        user_accuracy=last_user_accuracy(rounds),
        model=info.model or "",
        rounds=rounds,
        private=info.private,
    )
