"""Settings of the coordinator, from fedpatch.toml, $FEDPATCH_* and the options of `fedpatch run` and `demo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fedpatch.coordinator.aggregation.limit_syntax import parse_aggregate_rule, parse_examples_cap, parse_norm_bound
from fedpatch.coordinator.aggregation.privacy_policy import MECHANISMS
from fedpatch.coordinator.blobs.blob_store import url_problem
from fedpatch.coordinator.blobs.served_models import served_problem
from fedpatch.coordinator.buffered.carried_work import MAX_STALENESS
from fedpatch.coordinator.cohort.selection import HELP
from fedpatch.coordinator.dependent_defaults import of_round, of_signed_keys, shared_moments
from fedpatch.coordinator.masking.masked_groups import LEAST_GROUP, largest_group
from fedpatch.coordinator.rounds.encoding_for_device import ENCODING_HELP
from fedpatch.coordinator.setting_conflicts.carried_work import CARRIED_WORK, NO_CARRIED_WORK
from fedpatch.coordinator.setting_conflicts.conflict import conflicts_of
from fedpatch.coordinator.setting_conflicts.control_variates import CONTROL_VARIATES
from fedpatch.coordinator.setting_conflicts.differential_privacy import privacy_problems
from fedpatch.coordinator.setting_conflicts.evaluate_rounds import EVALUATE_ROUNDS
from fedpatch.coordinator.setting_conflicts.masked_groups import GROUPS, NOISE_OF_DEVICES, SINGLE_UPDATES, UNMASKED
from fedpatch.coordinator.setting_conflicts.rounds_and_transfer import MAX_CHUNKS_IN_FLIGHT, ROUNDS_AND_TRANSFER
from fedpatch.coordinator.setting_conflicts.standbys import STANDBYS
from fedpatch.shared.config.database_url import database_problem
from fedpatch.shared.config.fields import Settings, setting
from fedpatch.shared.config.listen_address import is_loopback, parse_address
from fedpatch.shared.masking.group_threshold import most_colluders, threshold_of
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.trackers.tracking import check_names
from fedpatch.shared.wire.chunk_sizes import DEFAULT_CHUNK_KIB
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS, MAX_GROUP, ThresholdRule
from fedpatch.shared.wire.messages import ENCODINGS, MAX_CHUNKS
from fedpatch.shared.wire.plan_terms import parse_personal, parse_phases, term_problems

CA_DIRECTORY = "ca"

_TRAINING, ROUNDS, _DEADLINES, _TRANSFER, _METRICS = "Training", "Rounds", "Deadlines", "Transfer", "Metrics"
_TRACKERS = "Trackers"
_LIMITS, _PRIVACY, _SECURE = "Limits of a device", "Differential privacy", "Secure aggregation"
MASKED_MODEL_ENCODING = "delta-int8"
"""The encoding of the models of a masked run: the way down is as in other runs."""

_YEAR_S = 366 * 86_400

_training, _rounds, _transfer, _limits, _privacy, _secure = (
    partial(setting, group=group) for group in (_TRAINING, ROUNDS, _TRANSFER, _LIMITS, _PRIVACY, _SECURE)
)
_learning_rate = partial(setting, None, group=_TRAINING, gt=0.0, le=1e3, default_means="the task's")
_metrics = partial(
    setting,
    group=_METRICS,
    help="HOST:PORT of the Prometheus endpoint; port 0 takes a free one, none disables it.",
)
_deadline = partial(setting, group=_DEADLINES, le=_YEAR_S, unit="seconds")


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Settings):
    """Settings of rounds, for a real fleet and for the demo."""

    common: ClassVar[frozenset[str]] = frozenset(
        {
            *("task", "strategy", "private", "learning_rate", "epochs", "personal", "seed"),
            *("rounds", "target_ua", "devices", "participation", "quorum", "late", "time_limit_s", "deadline_s"),
            *("encoding", "metrics", "tracker", "dp", "secure"),
        }
    )
    former: ClassVar[Mapping[str, str]] = {
        "keep": "has no effect, since all values of a masked update travel; delete it"
    }

    task: str = _training("digits", help="Task to train, by name or as module:attribute.")
    strategy: str = _training(
        "fedavg-adam", help="Federated algorithm, by name (fedpatch strategies) or as module:attribute."
    )
    private: str = _training(
        "affine",
        help="Patch that stays on each device: none, stats, affine, all (of batch norm), norms, head or names:GLOB,...",
    )
    learning_rate: float | None = _learning_rate(help="Learning rate on the devices.")
    server_learning_rate: float | None = _learning_rate(help="Learning rate of the server's optimizer.")
    epochs: int = _training(1, ge=0, le=100_000, unit="epochs", help="Passes over the data per round.")
    steps: int = _training(
        0, ge=0, le=100_000_000, unit="steps", help="Minibatches per round instead of epochs, if above 0."
    )
    batch_size: int | None = _training(
        None, ge=1, le=1_000_000, unit="examples", default_means="the task's", help="Examples per minibatch."
    )
    prox: float = _training(
        0.0,
        ge=0.0,
        le=1e6,
        help="Mu of FedProx, which pulls a device's model towards the round's global model.",
    )
    phases: str = _training(
        "",
        default_means="none",
        help="Parts of a round, in place of epochs and steps: PART:N,... where PART is all, private or public, N "
        "epochs, Ns steps.",
    )
    personal: str = _training(
        "",
        default_means="none",
        help="Second copy of the model, which becomes the personal model: ditto:LAMBDA or pfedme:LAMBDA.",
    )
    finish: str = _training(
        "",
        default_means="none",
        help="Phases in which each device trains a copy of the round's model, which becomes its personal model.",
    )
    seed: int = _training(0, ge=0, le=2**53, help="Seed of the initial model, the selection and the minibatches.")

    rounds: int = _rounds(30, ge=1, le=1_000_000, unit="rounds", help="Number of rounds.")
    target_ua: float | None = _rounds(None, help="Mean user accuracy that ends the run earlier.")
    devices: int = _rounds(1, ge=1, le=100_000, unit="devices", help=HELP["devices"])
    participation: float = _rounds(1.0, gt=0.0, le=1.0, help=HELP["participation"])
    over_select: float = _rounds(
        1.0,
        ge=1.0,
        le=10.0,
        help="Invitations per device aimed for, because some decline or drop out.",
    )
    min_cohort: int = _rounds(1, ge=1, le=100_000, unit="devices", help=HELP["min_cohort"])
    quorum: float = _rounds(0.8, gt=0.0, le=1.0, help=HELP["quorum"])
    quorum_updates: int | None = _rounds(
        None,
        ge=1,
        le=100_000,
        unit="updates",
        default_means="the share quorum",
        help="Updates that end a round, and least number of devices aimed for, in place of the share quorum.",
    )
    late: str = _rounds(
        "refuse",
        choices=("refuse", "carry"),
        help="Work that a round leaves unfinished: refuse (cancel it) or carry (a later round takes its difference).",
    )
    max_staleness: int = _rounds(
        4,
        ge=1,
        le=MAX_STALENESS,
        unit="versions",
        help="With late = carry: versions of the model after which carried work is cancelled.",
    )
    staleness_power: float = _rounds(
        0.5,
        ge=-1.0,
        le=10.0,
        help="With late = carry: p in the weight (1 + staleness)^-p of an update.",
    )
    concurrency: int | None = _rounds(
        None,
        ge=1,
        le=100_000,
        unit="devices",
        default_means="the share participation",
        help="With late = carry: devices at work at once, in place of participation.",
    )
    round_interval_s: float = _rounds(
        0.0, ge=0.0, le=_YEAR_S, unit="seconds", help="Least time between starts of rounds."
    )
    independent_every: int = _rounds(
        10,
        ge=0,
        le=1_000_000,
        unit="rounds",
        help="Training rounds between measurements of learning alone; 0: never.",
    )
    max_failed_rounds: int = _rounds(3, ge=1, le=1_000_000, unit="rounds", help=HELP["max_failed_rounds"])

    time_limit_s: float | None = _deadline(None, gt=0.0, le=10 * _YEAR_S, help="Time after which the run ends.")
    wait_s: float = _deadline(
        120.0,
        ge=0.0,
        help=HELP["wait_s"],
    )
    recruit_deadline_s: float = _deadline(10.0, gt=0.0, help="Time to accept or decline a round.")
    deadline_s: float | None = _deadline(
        None,
        gt=0.0,
        default_means="auto",
        none_word="auto",
        help="Longest time of a round; auto: from the times of earlier rounds, 600 s for the first.",
    )
    grace_s: float = _deadline(
        10.0, ge=0.0, help="Time for other devices after the quorum; 0 with late = carry, if not set."
    )
    rejoin_s: float = _deadline(10.0, ge=0.0, help="Absence after which a device counts as lost.")

    encoding: str = _transfer("delta-int8", choices=(*ENCODINGS, *MASKED_ENCODINGS), help=ENCODING_HELP)
    chunk_kib: int = _transfer(
        DEFAULT_CHUNK_KIB, ge=8, le=1024, unit="KiB", help="Size of a chunk; less if the broker limits packets."
    )
    upload_slots: int = _transfer(
        4,
        ge=1,
        le=MAX_CHUNKS_IN_FLIGHT,
        unit="devices",
        help="Simultaneous long uploads, of upload_window chunks each.",
    )
    upload_window: int = _transfer(8, ge=1, le=MAX_CHUNKS_IN_FLIGHT, unit="chunks", help="Chunks in flight per device.")
    max_model_mib: int = _transfer(512, ge=1, le=2048, unit="MiB", help="Largest accepted model or update.")

    metrics: str | None = _metrics(None, default_means="not served")
    metrics_max_devices: int = setting(
        50,
        group=_METRICS,
        ge=0,
        le=100_000,
        unit="devices",
        help="Devices with series of their own; of more, the worst of each question (slow, failing, offline, hot).",
    )

    tracker: tuple[str, ...] = setting(
        (),
        group=_TRACKERS,
        default_means="none",
        help="Experiment trackers: tensorboard, mlflow, wandb or one of a package; NAME:PLACE names a folder or "
        "an address.",
    )

    norm_bound: str = _limits(
        "auto:2",
        help="Bound of an update's distance (L2 norm) from the global model: off, clip:X, reject:X, or auto:F, F "
        "times the round's median.",
    )
    aggregate: str = _limits(
        "mean",
        help="Rule of aggregation: mean, centred[:TAU] or trimmed:BETA.",
    )
    max_num_examples: str = _limits(
        "auto:10",
        help="Largest weight of an update, in examples: off, a number, or auto:F, F times the round's median.",
    )
    quarantine_after: int = _limits(5, ge=0, le=1_000_000, unit="offences", help="Offences until quarantine; 0: never.")
    max_devices: int = _limits(
        10_000, ge=1, le=1_000_000, unit="devices", help="Known devices; further ones replace absent ones."
    )
    max_members: int = _limits(
        1,
        ge=1,
        le=1_000_000,
        unit="devices",
        help="Most devices that one device, a relay, may speak for, as its update weighs as much as theirs; 1: no relay.",
    )

    dp: str = _privacy(
        "off",
        choices=MECHANISMS,
        help="Differential privacy: off, central (noise of the coordinator) or distributed (of the devices, under "
        "masks; needs secure).",
    )
    noise_multiplier: float | None = _privacy(
        None,
        ge=1e-3,
        le=1e6,
        default_means="none; needed with dp",
        help="Standard deviation of the noise on the sum of the updates, over dp_clip.",
    )
    dp_clip: float | None = _privacy(
        None,
        ge=1e-6,
        le=1e9,
        default_means="none; needed with dp",
        help="Greatest distance (L2 norm) of an update from the global model; longer ones are shortened.",
    )
    delta: float = _privacy(1e-5, gt=0.0, le=0.5, help="Delta for which epsilon is reported.")
    max_epsilon: float | None = _privacy(
        None, gt=0.0, le=1e6, default_means="no limit", help="Greatest epsilon of a device in the whole run."
    )

    secure: str = _secure(
        "off",
        choices=("off", "groups"),
        help="Secure aggregation: off, or groups, of which the coordinator learns only the sum of the updates.",
    )
    group_size: int = _secure(
        32, ge=LEAST_GROUP, le=MAX_GROUP, unit="devices", help="Size of the largest masked group."
    )
    min_group: int = _secure(
        LEAST_GROUP,
        ge=LEAST_GROUP,
        le=MAX_GROUP // 2,
        unit="devices",
        help="Size of the smallest masked group.",
    )
    threshold: str = _secure(
        "half",
        choices=("half", "two_thirds"),
        default_means="two_thirds; half in a demonstration",
        help="Share of a group, more than which must stay to the end: two_thirds, where devices also sign their keys "
        "with certificates of the fleet's CA, or half, which hides updates from an honest coordinator only.",
    )
    colluders: int = _secure(
        0,
        ge=0,
        le=MAX_GROUP // 3,
        unit="devices",
        help="With dp = distributed: devices of a group whose noise does not count, since they may tell it to the coordinator.",
    )
    clip: float | None = _secure(
        None,
        gt=0.0,
        le=1e9,
        default_means="follows from the sums of earlier rounds",
        none_word="auto",
        help="Longest step of a masked update (L2 norm).",
    )
    weight_cap: int | None = _secure(
        None,
        ge=1,
        le=2**31,
        unit="examples",
        default_means="the median of the registered numbers",
        none_word="auto",
        help="Greatest weight of a masked update, in examples.",
    )
    share_deadline_s: float = _secure(
        30.0,
        gt=0.0,
        le=_YEAR_S,
        unit="seconds",
        help="Time for a group to exchange its secret shares.",
    )
    unmask_s: float = _secure(
        30.0,
        gt=0.0,
        le=_YEAR_S,
        unit="seconds",
        help="Time after collecting for the groups to reveal the masks of their sums.",
    )

    @property
    def masked(self) -> bool:
        """True if devices mask their updates."""
        return self.secure != "off"

    @property
    def largest_group(self) -> int:
        """Devices in the largest group that a masked run may form."""
        return largest_group(self.group_size, self.min_group)

    @property
    def most_colluders(self) -> int:
        """The most colluders that each group which a masked run may form withstands."""
        sizes = range(self.min_group, self.largest_group + 1)
        rule = ThresholdRule(self.threshold)
        return min((most_colluders(threshold_of(rule, size), size) for size in sizes), default=0)

    @property
    def least_chunk_kib(self) -> int:
        """The smallest chunk with which the largest model has few enough chunks, in KiB."""
        return -(-self.max_model_mib * 1024 // MAX_CHUNKS)

    @property
    def moments(self) -> tuple[str, ...]:
        """The moments that devices share by the strategy."""
        return shared_moments(self.strategy)

    @property
    def model_encoding(self) -> str:
        """The encoding of models, and of updates that are not masked."""
        return MASKED_MODEL_ENCODING if self.encoding in MASKED_ENCODINGS else self.encoding

    @classmethod
    def fit(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of buffered rounds and of a masked run, where `late` or `secure` is set."""
        return of_round(values)

    def check(self) -> list[tuple[str, ...]]:
        """Check names that must exist and fields that depend on each other."""
        problems = [*super().check(), *self._unreadable(), *privacy_problems(self)]
        problems += conflicts_of(self, (*UNMASKED, *SINGLE_UPDATES, *GROUPS, *NOISE_OF_DEVICES))
        problems += conflicts_of(self, (*NO_CARRIED_WORK, *CARRIED_WORK, *CONTROL_VARIATES))
        problems += term_problems(
            prox=self.prox,
            phases=self.phases,
            personal=self.personal,
            finish=self.finish,
            private=self.private,
            epochs=self.epochs,
            steps=self.steps,
        )
        problems += conflicts_of(self, ROUNDS_AND_TRANSFER)
        return problems

    def _unreadable(self) -> list[tuple[str, ...]]:
        """Problems of values that cannot be parsed. The task is found without loading it."""
        # Imported here because help and `fedpatch show` must not load numpy.
        from fedpatch.coordinator.aggregation.strategy import refusal_of_rule
        from fedpatch.coordinator.find_strategy import find_strategy
        from fedpatch.shared.tasks.task import TASKS
        from fedpatch.shared.tensors.patch_policy import check_private

        problems = self.refusals(
            task=TASKS.check_name,
            strategy=find_strategy,
            private=check_private,
            metrics=parse_address,
            norm_bound=parse_norm_bound,
            aggregate=parse_aggregate_rule,
            max_num_examples=parse_examples_cap,
            tracker=check_names,
            phases=lambda text: text and parse_phases(text),
            personal=lambda text: text and parse_personal(text),
            finish=lambda text: text and parse_phases(text),
        )
        if not problems and (
            why := refusal_of_rule(parse_aggregate_rule(self.aggregate), find_strategy(self.strategy))
        ):
            problems.append(("aggregate", why, "strategy"))
        return problems


@dataclass(frozen=True, kw_only=True)
class RunSettings(RoundSettings, BrokerSettings):
    """Settings of `fedpatch run`, a run over a real fleet."""

    common: ClassVar[frozenset[str]] = RoundSettings.common | {
        *("broker", "username", "password_file", "ca_file", "cert_file", "insecure", "fleet", "state_dir")
    }

    evaluate_every: int = _rounds(
        0,
        ge=0,
        le=1_000_000,
        unit="rounds",
        help="Training rounds between evaluate rounds; 0: never.",
    )
    evaluate_participation: float = _rounds(1.0, gt=0.0, le=1.0, help="Share of the fleet that an evaluate round asks.")

    metrics: str | None = _metrics("127.0.0.1:9464")
    traces: str | None = setting(
        None,
        group=_METRICS,
        default_means="not sent",
        help="URL of an OpenTelemetry endpoint (OTLP over HTTP) for traces of rounds.",
    )

    state_dir: Path = setting(Path("fedpatch-state"), group="State", help="Directory of runs, checkpoints and updates.")
    blobs: str | None = setting(
        None,
        group="State",
        default_means="the state directory",
        help="Store of checkpoints, updates, deltas and models: s3://BUCKET/PREFIX (extra s3, AWS_* environment) or file:///DIR.",
    )
    models_store: str | None = setting(
        None,
        group=_TRANSFER,
        default_means="the broker only",
        help="Store from which devices fetch models by URL: s3://BUCKET/PREFIX or file:///DIR.",
    )
    models_url: str | None = setting(
        None,
        group=_TRANSFER,
        default_means="presigned URLs of the bucket",
        help="HTTPS URL of the web server or CDN that serves models_store.",
    )
    state: str | None = setting(
        None,
        group="State",
        default_means="as registry.url says, else SQLite in state_dir",
        help="URL of a PostgreSQL database for the registry, without a password.",
    )
    standby: bool = setting(
        False,
        group="State",
        help="Wait while another coordinator leads the fleet, then take over; needs state and shared blobs.",
    )
    ca_dir: Path | None = setting(
        None,
        group="State",
        default_means="ca in the state directory",
        help="Directory of the fleet's CA.",
    )

    def check(self) -> list[tuple[str, ...]]:
        """Check the URL for traces too, which name devices and so need TLS on the way to another machine."""
        problems = [*super().check(), *(conflicts_of(self, EVALUATE_ROUNDS) if self.evaluate_every else ())]
        if self.blobs is not None and (problem := url_problem(self.blobs)):
            problems.append(("blobs", problem))
        if served := served_problem(self.models_store, self.models_url, blobs=self.blobs, insecure=self.insecure):
            problems.append(served)
        if self.state is not None and (problem := database_problem(self.state, insecure=self.insecure)):
            problems.append(("state", problem, "insecure"))
        problems += conflicts_of(self, STANDBYS)
        if self.traces is not None:
            problems += traces_problems(self.traces, insecure=self.insecure)
        return problems

    @classmethod
    def fit(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of a run over a real fleet: members of masked groups sign their keys."""
        return super().fit(values) | of_signed_keys(values)

    @property
    def ca_directory(self) -> Path:
        """Directory of the CA, which may not exist."""
        return self.ca_dir or self.state_dir / CA_DIRECTORY


def traces_problems(traces: str, *, insecure: bool) -> Iterator[tuple[str, ...]]:
    """Yield the problem of a URL for traces, if any: they name devices, so they need TLS on the way to another machine."""
    try:
        url = urlsplit(traces)
        host, _ = url.hostname, url.port
    except ValueError as error:
        yield "traces", f"{traces!r} is no URL ({error}); write https://HOST:PORT"
        return
    if url.scheme not in ("http", "https") or not host:
        yield "traces", f"{traces!r} is no URL; write https://HOST:PORT"
    elif url.scheme == "http" and not insecure and not is_loopback(host):
        yield "traces", f"{host} is another machine; write https://, or allow it with insecure", "insecure"
