"""The settings of a fleet study: the round policy, as in a run, and the properties of devices and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.dependent_defaults import fitting_grace, shared_moments
from fedpatch.coordinator.rounds.auto_deadline import FIRST_DEADLINE_S
from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.settings import RoundSettings
from fedpatch.shared.config.fields import Settings, setting, setting_like
from fedpatch.shared.wire.messages import ENCODINGS, MAX_BLOB_BYTES, MAX_CHUNKS, TrainPlan
from fedpatch.shared.wire.plan_terms import CONTROL

TASK = "fleet"
SCHEMA = "00" * 32
OTHER_SCHEMA = "ff" * 32

_TRAINING, _LINKS, _FAULTS = "Training of a device", "Links of a device", "What goes wrong"
_LEARNING = "Real training"
_training, _links, _faults = (partial(setting, group=group) for group in (_TRAINING, _LINKS, _FAULTS))
# A setting of `fedpatch run` with the same limits; a fleet study may have another default and text.
_as_in_a_run = partial(setting_like, RoundSettings)


# Devices of a study always come back, after any absence.
_AS_LONG_AS_IT_TAKES_S = 1e9
_LONGEST_PAUSE_S = 60.0
# The first round waits for this share of the average number of present devices.
_THERE_AT_FIRST = 0.75


@dataclass(frozen=True, kw_only=True)
class FleetTerms(Settings):
    """Terms of `simulate_fleet`. Plain data; the same terms give the same report.

    A spread is a geometric standard deviation: two of three devices lie between median / spread and median * spread, and
    1 makes all alike. The defaults follow Bonawitz et al. 2019, "Towards federated learning at scale", where they can: 130 %
    of the devices wanted are asked because 6 to 10 % of them drop out. Training times and links are those of single-board
    computers on home lines with the paper's 2NN (200,000 parameters); they are assumptions, so put in your own.
    """

    common: ClassVar[frozenset[str]] = frozenset(
        {
            *("devices", "rounds", "seed", "participation", "over_select", "quorum", "late", "deadline_s"),
            *("model_bytes", "update_bytes", "train_s", "slow_share", "slow_factor", "speed_range"),
            *("down_mbit_s", "up_mbit_s", "unwilling", "dropout_training", "dropout_upload", "away_s", "away_share"),
            *("train", "train_data", "strategy", "private", "target_ua"),
        }
    )

    devices: int = _as_in_a_run("devices", 1000, help="Number of devices.")
    rounds: int = _as_in_a_run("rounds", 20)
    seed: int = _as_in_a_run("seed", help="Seed of all random draws.")
    participation: float = _as_in_a_run("participation", 0.1)
    over_select: float = _as_in_a_run("over_select", 1.3)
    min_cohort: int = _as_in_a_run("min_cohort")
    quorum: float = _as_in_a_run("quorum")

    quorum_updates: int | None = _as_in_a_run("quorum_updates")
    late: str = _as_in_a_run("late")
    max_staleness: int = _as_in_a_run("max_staleness")
    staleness_power: float = _as_in_a_run("staleness_power")
    concurrency: int | None = _as_in_a_run("concurrency")

    recruit_deadline_s: float = _as_in_a_run("recruit_deadline_s")
    deadline_s: float | None = _as_in_a_run("deadline_s")
    grace_s: float = _as_in_a_run("grace_s")
    rejoin_s: float = _as_in_a_run("rejoin_s")

    model_bytes: int = setting(
        800_000, group="Transfer", ge=1, le=MAX_BLOB_BYTES, unit="bytes", help="Encoded size of the global model."
    )
    update_bytes: int = setting(
        800_000, group="Transfer", ge=1, le=MAX_BLOB_BYTES, unit="bytes", help="Encoded size of an update."
    )
    chunk_kib: int = _as_in_a_run("chunk_kib", help="Size of a chunk.")
    upload_slots: int = _as_in_a_run("upload_slots")
    upload_window: int = _as_in_a_run("upload_window")

    train_s: float = _training(20.0, gt=0.0, le=1e6, unit="seconds", help="Median training time per round.")
    train_spread: float = _training(1.5, ge=1.0, le=10.0, help="Spread of training times between devices.")
    round_spread: float = _training(1.1, ge=1.0, le=10.0, help="Spread of one device's training time.")
    slow_share: float = _training(0.05, ge=0.0, le=1.0, help="Share of slow devices.")
    slow_factor: float = _training(4.0, ge=1.0, le=1000.0, help="Training time of slow devices, as a multiple.")

    speed_range: float = _training(
        1.0,
        ge=1.0,
        le=1000.0,
        help="Training time of the slowest device over train_s, the time of the fastest; the others lie between, "
        "evenly by ratio.",
    )
    train: str | None = setting(
        None,
        group=_LEARNING,
        default_means="nothing is trained",
        help="Task to train, by name or as module:attribute; adds user accuracy to the table.",
    )
    train_data: str = setting(
        "", group=_LEARNING, help="With train: data spec of device {index} of {count}; empty: the task's."
    )
    strategy: str = _as_in_a_run("strategy", "fedavg", help="With train: federated algorithm.")
    private: str = _as_in_a_run("private")
    learning_rate: float | None = _as_in_a_run("learning_rate")
    server_learning_rate: float | None = _as_in_a_run("server_learning_rate")
    epochs: int = _as_in_a_run("epochs")
    steps: int = _as_in_a_run("steps")
    target_ua: float | None = _as_in_a_run("target_ua")

    down_mbit_s: float = _links(20.0, gt=0.0, le=1e5, unit="Mbit/s", help="Median download speed.")
    up_mbit_s: float = _links(5.0, gt=0.0, le=1e5, unit="Mbit/s", help="Median upload speed.")
    link_spread: float = _links(2.0, ge=1.0, le=10.0, help="Spread of both between devices.")
    latency_s: float = _links(0.03, ge=0.0, le=60.0, unit="seconds", help="Time from a device through the broker.")

    unwilling: float = _faults(0.05, ge=0.0, le=1.0, help="Chance that a device declines a round.")
    outdated: float = _faults(0.0, ge=0.0, le=1.0, help="Share of devices with another task version.")
    dropout_training: float = _faults(0.06, ge=0.0, le=1.0, help="Chance of a disconnection during training.")
    dropout_upload: float = _faults(0.02, ge=0.0, le=1.0, help="Chance of a disconnection during upload.")
    away_s: float = _faults(120.0, gt=0.0, le=1e7, unit="seconds", help="Median absence.")
    away_spread: float = _faults(2.0, ge=1.0, le=10.0, help="Spread of absences.")
    away_share: float = _faults(
        0.0,
        ge=0.0,
        le=0.9,
        help="Share of the time that a device is away for other reasons, in absences of away_s.",
    )
    message_loss: float = _faults(0.0, ge=0.0, le=0.9, help="Chance to lose a message or chunk.")

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk, of the model and of an update."""
        return self.chunk_kib * 1024

    @classmethod
    def fit(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of buffered rounds, as in a run."""
        return fitting_grace(values)

    def check(self) -> list[tuple[str, ...]]:
        """Return the problems of a run's settings, and those of the simulation alone."""
        shared = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name in RoundSettings.__dataclass_fields__
        }
        if CONTROL in shared_moments(self.strategy):
            words = f"{self.strategy} keeps control variates, which `fedpatch simulate` alone computes; use another strategy"
            return [*super().check(), ("strategy", words)]
        problems = [*super().check(), *RoundSettings(**shared).check()]
        for name in ("model_bytes", "update_bytes"):
            if getattr(self, name) > self.chunk_bytes * MAX_CHUNKS:
                text = f"{getattr(self, name)} are more than {MAX_CHUNKS} chunks; make chunk_kib larger"
                problems.append((name, text, "chunk_kib"))
        for name in ("min_cohort", "quorum_updates"):
            if (getattr(self, name) or 0) > self.devices:
                text = f"{getattr(self, name)} is more than devices = {self.devices}, so no round would begin; make it smaller"
                problems.append((name, text, "devices"))
        return problems

    def run_spec(self, *, chunk_bytes: int) -> RunSpec:
        """Return the engine's terms; `chunk_bytes` is the declared size of chunks.

        Failed rounds and missing devices do not end a study.
        """
        return RunSpec(
            run="study",
            epoch=1,
            task=TASK,
            schema=SCHEMA,
            public_schema=SCHEMA,
            private="affine",
            plan=TrainPlan("sgd", 0.1, 20),
            encoding=ENCODINGS[0],
            chunk_bytes=chunk_bytes,
            max_blob_bytes=MAX_BLOB_BYTES,
            rounds=self.rounds,
            target_ua=None,
            time_limit_s=None,
            max_failed_rounds=self.rounds,
            # The first round waits for this number; all devices are almost never present at once.
            devices=max(1, int(self.devices * (1.0 - self.away_share) * _THERE_AT_FIRST))
            if self.away_share
            else self.devices,
            wait_s=_AS_LONG_AS_IT_TAKES_S,
            longest_pause_s=_LONGEST_PAUSE_S,
            participation=self.participation,
            over_select=self.over_select,
            policy=RoundPolicy(
                target=0,
                min_cohort=self.min_cohort,
                quorum=self.quorum,
                recruit_deadline_s=self.recruit_deadline_s,
                deadline_s=self.deadline_s or FIRST_DEADLINE_S,
                grace_s=self.grace_s,
                rejoin_s=self.rejoin_s,
                quorum_updates=self.quorum_updates,
                carries=self.late == "carry",
            ),
            upload_slots=self.upload_slots,
            upload_window=self.upload_window,
            seed=self.seed,
            auto_deadline=self.deadline_s is None,
            carry=self.carry_policy(),
        )

    def carry_policy(self) -> CarryPolicy | None:
        """Return the conditions of buffered rounds; None if late updates are refused."""
        if self.late != "carry":
            return None
        return CarryPolicy(self.max_staleness, self.staleness_power, self.concurrency)
