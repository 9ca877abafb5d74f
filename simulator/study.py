"""What a simulation is to do, and what came of it; both are plain data that go to JSON and come back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from shared.errors import UsageError
from shared.metric_terms import ACCURACY, Goal, MetricTerms

STRATEGIES_OF_MTFL = ("fedavg", "fedadam", "fedavg-adam")
BASELINES = ("per-fedavg", "pfedme", "independent")
ALGORITHMS = (*STRATEGIES_OF_MTFL, *BASELINES)


@dataclass(frozen=True)
class Study:
    """The terms of one simulation.

    `strategy` is one of ALGORITHMS. `data` is the data spec of client {index} of {count}; {seed} is put in too where it
    stands there. `participation` is the paper's C. `learning_rate` is the client optimizer's (Per-FedAvg: beta, pFedMe: eta),
    `server_learning_rate` only FedAdam's, `adaptation_rate` only Per-FedAvg's (alpha), `proximity` only pFedMe's (lambda).
    `steps` 0 means round(num_examples / batch_size) * epochs steps of every client in a round. `metric` and `metric_goal`
    are the task's, in whose terms every user accuracy is.
    """

    task: str
    clients: int
    strategy: str
    private: str
    data: str
    participation: float
    rounds: int
    target_ua: float | None
    seed: int
    learning_rate: float
    batch_size: int
    server_learning_rate: float | None = None
    adaptation_rate: float | None = None
    proximity: float | None = None
    epochs: int = 1
    steps: int = 0
    metric: str = ACCURACY
    metric_goal: Goal = "max"

    @property
    def label(self) -> str:
        """What its user accuracies are called in a heading or a line."""
        return MetricTerms(self.metric).label

    @property
    def measure_words(self) -> str:
        """The same in full."""
        return "user accuracy" if self.metric == ACCURACY else self.metric

    def reached(self, user_accuracy: float) -> bool:
        """Whether there is a target, and this is as good or better."""
        terms = MetricTerms(self.metric, self.metric_goal)
        return self.target_ua is not None and terms.reached(user_accuracy, self.target_ua)

    def differences(self, other: Study) -> str:
        """What `other` has else than this one, in words."""
        pairs = [(one.name, getattr(self, one.name), getattr(other, one.name)) for one in fields(Study)]
        return ", ".join(f"{name} {mine}, not {its}" for name, mine, its in pairs if mine != its)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `metric` and `metric_goal` only where the task's metric is not accuracy."""
        plain = asdict(self)
        if self.metric == ACCURACY:
            del plain["metric"], plain["metric_goal"]
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Study:
        """Undo `to_dict`. Raises UsageError where a term is missing or unknown."""
        known = {one.name for one in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UsageError(f"a simulation has no term {', '.join(unknown)}; it was written by another version")
        try:
            return cls(**values)
        except TypeError as error:
            raise UsageError(f"the terms of a simulation are not whole ({error})") from error


@dataclass(frozen=True)
class Point:
    """User accuracy after `round` completed rounds, before the next one's training (paper, section 4.2).

    Taken over the `counted` clients that are selected for the next round and count in UA (the noisy ones do not), each
    weighted alike: the mean, what the worst tenth of them does not surpass (`p10`), and the worst (`lowest`; where the
    metric's goal is "min", the greatest). `train_loss` is the mean over the clients of round `round` of the mean over their
    steps; None at 0. `seconds` is the time since the point before.
    """

    round: int
    user_accuracy: float
    p10: float
    lowest: float
    counted: int
    train_loss: float | None
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave: `points[t]` belongs to t completed rounds.

    `complete` is False where it was interrupted before the target or the last round.
    """

    study: Study
    points: tuple[Point, ...]
    complete: bool
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def rounds_to_target(self) -> int | None:
        """Completed rounds when UA first was at the target; None if it never was, or there is no target."""
        return next((one.round for one in self.points if self.study.reached(one.user_accuracy)), None)

    @property
    def user_accuracy(self) -> float | None:
        """That of the last point."""
        return self.points[-1].user_accuracy if self.points else None

    @property
    def seconds(self) -> float:
        """Computing time of all points, over all the sittings it took."""
        return math.fsum(one.seconds for one in self.points)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `curve` is user accuracy alone, by completed rounds."""
        return {
            "study": self.study.to_dict(),
            "rounds_to_target": self.rounds_to_target,
            "user_accuracy": self.user_accuracy,
            "complete": self.complete,
            "curve": [one.user_accuracy for one in self.points],
            "points": [asdict(one) for one in self.points],
            "seconds": self.seconds,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Undo `to_dict`. Raises UsageError for anything else."""
        try:
            points = tuple(Point(**one) for one in values["points"])
            return cls(Study.from_dict(values["study"]), points, bool(values["complete"]), dict(values["versions"]))
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is not the outcome of a simulation ({error!r})") from error


def client_id(client: int) -> str:
    """What the device of a simulated client would be called; its batches depend on it."""
    return f"client-{client}"
