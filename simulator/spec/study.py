"""The description of a simulation and its outcome, as plain data that is written to JSON and read back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fedpatch.coordinator.cohort.quorum import ROUNDING
from fedpatch.shared.errors import UsageError
from fedpatch.shared.scripting.frames import frame_of
from fedpatch.shared.tasks.metric_spec import ACCURACY, Goal, MetricTerms
from fedpatch.shared.typed_values import learn_types
from fedpatch.simulator.spec.plain_values import from_plain

if TYPE_CHECKING:
    from pandas import DataFrame

BASELINES = ("per-fedavg", "pfedme", "independent")
UNBOUNDED = "off"
MEAN = "mean"
EVERYTHING = "names:*"
"""Policy in which nothing is federated: each client learns alone, by the strategy's own plan (simulator.comparison)."""
EXACT = "fp32"
"""The encoding that changes no bit, and the simulator's default."""

DEFAULTS: Mapping[str, Any] = {
    "data": "",
    "participation": 1.0,
    "rounds": 500,
    "target_ua": None,
    "seed": 0,
    "batch_size": None,
    "learning_rate": None,
    "noisy_fraction": 0.0,
}
"""Defaults of terms that a user may leave out but a Study has; None: the task's. Other terms have that of their field."""

_OPTIONAL_TERMS = (
    ("encoding",),
    ("prox",),
    ("phases",),
    ("personal",),
    ("finish",),
    ("norm_bound",),
    ("max_num_examples",),
    ("aggregate",),
    ("dp", "noise_multiplier", "dp_clip", "delta"),
    ("secure", "group_size", "clip"),
    ("attack", "bad"),
    ("metric", "metric_goal"),
)
"""Terms that the files of a study have only where they are not the defaults, so that files of earlier versions stay equal."""


@dataclass(frozen=True)
class Study:
    """The terms of one simulation.

    `strategy` names a strategy (coordinator.find_strategy) or one of BASELINES. `data` is the data spec of client {index} of
    {count}; it may also contain {seed}. `participation` is the paper's C. `learning_rate` is the rate of the client's
    optimizer (Per-FedAvg: beta, pFedMe: eta), `server_learning_rate` that of the server's optimizer; `adaptation_rate` is for
    Per-FedAvg only (alpha), `proximity` for pFedMe only (lambda).
    `encoding` is the encoding of models and updates (shared.wire.messages.ENCODINGS). `norm_bound`, `max_num_examples`,
    `aggregate`, `dp`, `noise_multiplier`, `dp_clip` and `delta` are a run's settings of these names; the paper has no bounds
    and no noise, and aggregates by the mean. User accuracies of a study are exact, also with differential privacy.
    `prox`, `phases`, `personal` and `finish` are a run's settings too.
    With `secure` "groups" updates are masked in groups of at most `group_size`, and `clip` bounds the L2 norm of a step (None:
    it follows from earlier rounds); `encoding` is then only for downloads.
    `steps` 0 means round(num_examples / batch_size) * epochs steps of every client in a round. `metric` and `metric_goal`
    are the task's; every user accuracy is in this metric. `attack` is the attack of the share `bad` of the clients
    (simulator.attacks), "" for none.
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
    encoding: str = EXACT
    norm_bound: str = UNBOUNDED
    max_num_examples: str = UNBOUNDED
    aggregate: str = MEAN
    dp: str = UNBOUNDED
    noise_multiplier: float | None = None
    dp_clip: float | None = None
    delta: float = 1e-5
    secure: str = UNBOUNDED
    group_size: int = 32
    clip: float | None = None
    prox: float = 0.0
    phases: str = ""
    personal: str = ""
    finish: str = ""

    @property
    def masked(self) -> bool:
        """True if updates are masked in groups."""
        return self.secure != UNBOUNDED

    attack: str = ""
    bad: float = 0.0

    @property
    def metric_terms(self) -> MetricTerms:
        """Name and goal of the metric; only the task has its range."""
        return MetricTerms(self.metric, self.metric_goal)

    @property
    def label(self) -> str:
        """Name of the study's user accuracies in a heading or a line."""
        return self.metric_terms.label

    @property
    def measure_words(self) -> str:
        """The full name of these user accuracies."""
        return self.metric_terms.words

    @property
    def participants(self) -> int:
        """Number of clients that each round selects (simulator.experiment.client_selection)."""
        return max(1, int(self.participation * self.clients + ROUNDING))

    def reached(self, user_accuracy: float) -> bool:
        """Return whether there is a target, and `user_accuracy` reaches it."""
        return self.target_ua is not None and self.metric_terms.reached(user_accuracy, self.target_ua)

    def differences(self, other: Study) -> str:
        """Return the differences from `other`, in words."""
        pairs = [(one.name, getattr(self, one.name), getattr(other, one.name)) for one in fields(Study)]
        return ", ".join(f"{name} {mine}, not {its}" for name, mine, its in pairs if mine != its)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a group of _OPTIONAL_TERMS only if one of its terms is not the default."""
        plain = asdict(self)
        for group in _OPTIONAL_TERMS:
            if all(plain[name] == getattr(Study, name) for name in group):
                for name in group:
                    del plain[name]
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Study:
        """Undo `to_dict`. Raises UsageError if a term is missing, unknown or has another type."""
        if "keep" in values and values["keep"] == 1:
            # A term of earlier versions: with 1 all values of a masked update travel, as they do now.
            values = {name: value for name, value in values.items() if name != "keep"}
        return from_plain(cls, values, "the simulation")


@dataclass(frozen=True)
class Point:
    """User accuracy after `round` completed rounds, before the next one's training (paper, section 4.2).

    It is the unweighted mean over the `counted` clients that are selected for the next round and count in UA (noisy clients
    do not), with the bound of their worst tenth (`p10`) and the worst client (`lowest`; the greatest value if the metric's
    goal is "min"). `train_loss` is the mean over the clients of round `round` of the mean over their steps; None at 0.
    `seconds` is the time since the previous point. `bytes_up` are the bytes of all updates of round `round`, `bytes_down` the
    bytes that the clients selected for the next round download to get the model that is measured here; None if they were
    not counted.
    """

    round: int
    user_accuracy: float
    p10: float
    lowest: float
    counted: int
    train_loss: float | None
    seconds: float
    bytes_up: int | None = None
    bytes_down: int | None = None


@dataclass(frozen=True)
class AttackOutcome:
    """The result of an attack.

    Attributes:
        bad: Numbers of the bad clients.
        found: Their share among as many clients whose updates the rule and the bounds reduced most, over all rounds; a client
            without a reduced update is not found. None if no update was reduced.
        backdoor_success: Only for a backdoor: the share of the honest clients' test examples of other classes that the model
            classifies as the target when they have the trigger, as a mean over clients.
    """

    bad: tuple[int, ...]
    found: float | None = None
    backdoor_success: float | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation.

    Args:
        study: The terms of the simulation.
        points: The curve; `points[t]` belongs to t completed rounds.
        complete: False if it was interrupted before the target or the last round.
        versions: Versions of the programs that computed it.
        attack: The attack's result, for a complete study with an attack.

    Example:
        >>> import fedpatch
        >>> outcome = fedpatch.simulate(clients=4, rounds=1, strategy="fedavg", progress=False, workers=1)
        >>> outcome  # doctest: +ELLIPSIS
        <Outcome: digits, fedavg, private affine, 4 clients, seed 0: user accuracy 0... after 1 rounds>
        >>> outcome.to_frame()["user_accuracy"].idxmax()  # doctest: +SKIP
        1
    """

    study: Study
    points: tuple[Point, ...]
    complete: bool
    versions: Mapping[str, str] = field(default_factory=dict)
    attack: AttackOutcome | None = None

    def __repr__(self) -> str:
        """Return the terms and the result in a line, since a curve of hundreds of points would fill a notebook."""
        study, reached = self.study, self.rounds_to_target
        accuracy = "nothing measured" if self.user_accuracy is None else f"user accuracy {self.user_accuracy:.3f}"
        end = "" if reached is None else f", target reached after {reached}"
        terms = f"{study.task}, {study.strategy}, private {study.private}, {study.clients} clients, seed {study.seed}"
        return f"<Outcome: {terms}: {accuracy} after {max(0, len(self.points) - 1)} rounds{end}>"

    @property
    def rounds_to_target(self) -> int | None:
        """Completed rounds when UA first reached the target; None if it never did, or there is no target."""
        return next((one.round for one in self.points if self.study.reached(one.user_accuracy)), None)

    @property
    def user_accuracy(self) -> float | None:
        """User accuracy of the last point."""
        return self.points[-1].user_accuracy if self.points else None

    @property
    def bytes_up_per_update(self) -> float | None:
        """Mean size of an update in bytes; None if no update was sent or counted."""
        return _mean([one.bytes_up for one in self.points[1:]], self.study.participants)

    @property
    def bytes_down_per_download(self) -> float | None:
        """Mean bytes of a download of the round's model, over all clients and rounds."""
        return _mean([one.bytes_down for one in self.points], self.study.participants)

    @property
    def bytes_to_target(self) -> int | None:
        """Bytes of all clients, up and down, until user accuracy reached the target; None if it never did, or without counts.

        They include the downloads of the measured models, also of the model that reached the target.
        """
        reached = self.rounds_to_target
        way = [(one.bytes_up, one.bytes_down) for one in self.points if reached is not None and one.round <= reached]
        if not way or any(down is None or (up is None and number) for number, (up, down) in enumerate(way)):
            return None
        return sum((up or 0) + (down or 0) for up, down in way)

    @property
    def seconds(self) -> float:
        """Computing time of all points, in seconds, including points before an interruption."""
        return math.fsum(one.seconds for one in self.points)

    def to_frame(self) -> DataFrame:
        """A data frame with a row for each point, indexed by `round`. Raises UsageError without pandas."""
        return frame_of(map(asdict, self.points), "round")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `curve` is user accuracy alone, by completed rounds."""
        return {
            "study": self.study.to_dict(),
            "rounds_to_target": self.rounds_to_target,
            "user_accuracy": self.user_accuracy,
            "complete": self.complete,
            "encoding": self.study.encoding,
            "bytes_up_per_update": self.bytes_up_per_update,
            "bytes_down_per_download": self.bytes_down_per_download,
            "bytes_to_target": self.bytes_to_target,
            "curve": [one.user_accuracy for one in self.points],
            "points": [asdict(one) for one in self.points],
            "seconds": self.seconds,
            "versions": dict(self.versions),
            **({} if self.attack is None else {"attack": asdict(self.attack)}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Undo `to_dict`. Raises UsageError for anything else."""
        try:
            plain = {name: values[name] for name in ("points", "complete", "versions")}
            plain["points"] = [from_plain(Point, one, "a point of the curve") for one in plain["points"]]
            plain["attack"] = from_plain(AttackOutcome, values["attack"], "the attack") if "attack" in values else None
            return from_plain(cls, plain | {"study": Study.from_dict(values["study"])}, "the outcome of a simulation")
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is not the outcome of a simulation ({error!r})") from error


learn_types(Outcome)


def _mean(totals: Sequence[int | None], count: int) -> float | None:
    known = [total for total in totals if total is not None]
    return sum(known) / (count * len(known)) if known else None


def client_id(client: int) -> str:
    """Return the device name of a simulated client; the client's batches depend on this name."""
    return f"client-{client}"
