"""Settings of a device agent: in agent.toml, as $FEDPATCH_AGENT_*, as options of `fedpatch-agent run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from fedpatch.device_agent.policy.secure_limits import ALLOWED, MIN_GROUP, REQUIRED, SECURE_MODES
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.sensors.ups import parse_ups
from fedpatch.shared.config.fields import NAME_OR_EMPTY, Pattern, setting
from fedpatch.shared.config.listen_address import parse_address
from fedpatch.shared.masking.keys import is_available
from fedpatch.shared.mqtt.broker_settings import CONNECTION, BrokerSettings
from fedpatch.shared.tasks.task import TASKS
from fedpatch.shared.tensors.patch_policy import PatchPolicy, parse_policy
from fedpatch.shared.wire.masking_messages import MAX_GROUP

_WORK = "Work"
_LIMITS = "Limits to work requests"
_MODEL = "Personal model"
_TELLING = "Metrics and vitals"

_connection, _work, _limits, _model = (partial(setting, group=group) for group in (CONNECTION, _WORK, _LIMITS, _MODEL))

# Below, torch cannot even be imported; what a task takes comes on top.
_LEAST_MEMORY_MIB = 256

_ADMISSION = Pattern("preferences|always|never|file:.+", "preferences, always, never or file:PATH")


def _parse_floor(text: str) -> PatchPolicy | None:
    return parse_policy(text) if text else None


REQUIRED_EPSILON = 10.0
"""`max_epsilon` of an owner who demands differential privacy and sets none."""
REQUIRED_WEIGHT_CAP = 1000
"""`max_weight_cap` of an owner who demands masks and sets none."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings(PreferenceSettings, BrokerSettings):
    """`fedpatch-agent run`: one device of a fleet."""

    env_prefix: ClassVar[str] = "FEDPATCH_AGENT_"
    common: ClassVar[frozenset[str]] = frozenset(
        {
            *("broker", "username", "password_file", "ca_file", "cert_file", "insecure", "fleet", "device_id"),
            *("charging", "unmetered", "max_temperature", "max_load", "quiet_hours", "allowed_tasks"),
            *("max_rounds_per_day", "max_mib_per_day", "max_minutes_per_day"),
            *("task", "data", "data_root", "state_dir", "admission", "threads", "max_memory_mib"),
            *("private", "max_epsilon", "secure", "keep_models", "metrics", "share_vitals"),
        }
    )
    former: ClassVar[Mapping[str, str]] = {
        "keep_int8": "has no effect, since agents make no int8 models any more; delete it"
    }

    device_id: str = _connection(
        "",
        pattern=NAME_OR_EMPTY,
        default_means="the host's name, made to fit",
        help="Name of the device, unique in its fleet.",
    )
    reconnect_min_s: float = _connection(
        1.0, gt=0.0, le=3600.0, unit="seconds", help="Pause before the first reconnection attempt."
    )
    reconnect_max_s: float = _connection(
        60.0, gt=0.0, le=86_400.0, unit="seconds", help="Longest pause between reconnection attempts."
    )

    task: str = _work("digits", help="Task, by name or as module:attribute.")
    data: str = _work(example="shard:0/10", help="Which data this device holds.")
    data_root: Path | None = setting(
        None, group=_WORK, default_means="FEDPATCH_DATA, else the user's cache", help="Directory of data sets."
    )
    state_dir: Path = setting(
        Path("fedpatch-agent-state"),
        group=_WORK,
        help="Directory of patches, models and unfinished work.",
    )
    admission: str = _work(
        "preferences",
        pattern=_ADMISSION,
        help="Decision about rounds, or the file whose first line is accept, or decline and the reason.",
    )
    private: str = _limits(
        "",
        default_means="`affine`, and all that stayed private before",
        help="Private floor, tensors that always stay here: none, stats, affine, all or names:GLOB,... (requests "
        "that keep less are declined).",
    )
    max_steps: int = _limits(100_000, ge=1, le=100_000_000, unit="steps", help="Most training steps of one request.")
    max_epochs: int = _limits(100, ge=1, le=100_000, unit="epochs", help="Most passes over the data in one request.")
    max_epsilon: float | None = _limits(
        None,
        gt=0.0,
        le=1e6,
        default_means="10 with dp_required, else no limit",
        help="Greatest epsilon of this device over all runs; rounds beyond it or without differential privacy are "
        "declined.",
    )
    dp_required: bool = _limits(False, help="Decline rounds without differential privacy; implies max_epsilon.")
    dp_delta: float = _limits(1e-5, gt=0.0, le=0.5, help="Delta of max_epsilon.")
    secure: str = _limits(
        ALLOWED,
        choices=SECURE_MODES,
        help="Masked updates: off, allowed, or required, which declines requests for unmasked ones.",
    )
    min_group: int = _limits(MIN_GROUP, ge=2, le=MAX_GROUP, unit="devices", help="Smallest group of a masked round.")
    min_threshold: str | None = _limits(
        None,
        choices=("half", "two_thirds"),
        default_means="two_thirds with secure = required, else half",
        help="Smallest threshold of a masked round: two_thirds, which needs signed keys, or half, which protects from an "
        "honest coordinator only.",
    )
    max_weight_cap: int | None = _limits(
        None,
        ge=1,
        le=2**31,
        unit="examples",
        default_means="1,000 with secure = required, else any",
        help="Greatest weight of one device in a masked round; with a greater one, a device with many examples is the mean.",
    )
    min_colluders: int = _limits(
        0,
        ge=0,
        le=MAX_GROUP // 3,
        unit="devices",
        help="Devices of a group that may tell their noise: a masked round with differential privacy must count on so many.",
    )
    clip: float = _limits(
        0.0,
        ge=0.0,
        le=1e9,
        help="Longest step (L2 norm) that a masked round may allow; 0: any.",
    )
    ups: str = _work(
        "",
        default_means="the kernel's power supplies",
        help="UPS that the kernel does not know: nut:NAME@HOST, pisugar or command:PROGRAM.",
    )
    threads: int = _work(1, ge=1, le=1024, unit="threads", help="CPU threads for training.")
    nice: int = _work(10, ge=0, le=19, help="Niceness of training.")
    max_memory_mib: int = _work(
        0, ge=0, le=1_048_576, unit="MiB", help="Memory limit of the training process; 0: none."
    )
    idle_release_s: float = _work(
        600.0,
        ge=0.0,
        le=604_800.0,
        unit="seconds",
        help="Idle time after which training releases its memory; 0: only during announced rests.",
    )
    max_model_mib: int = _work(512, ge=1, le=2048, unit="MiB", help="Largest accepted model.")

    models_by_url: bool = _connection(
        True,
        help="Fetch models by URL where the coordinator names one; false: only from the broker.",
    )
    models_ca_file: Path | None = _connection(  # noqa: RUF009  (a path does not change)
        None,
        default_means="the system's, and ca_file",
        help="Trusted CA certificate of that server, PEM.",
    )

    keep_models: int = _model(3, ge=0, le=1000, unit="models", help="Kept personal models; 0: none is made.")
    model_every_s: float = _model(
        0.0,
        ge=0.0,
        le=604_800.0,
        unit="seconds",
        help="Least time between two personal models; 0: one of each round.",
    )
    keep_margin: float = _model(
        0.02, ge=0.0, help="How much worse on validation data a new personal model may be, in the task's metric."
    )
    alone_every: int = _model(
        10,
        ge=0,
        le=1_000_000,
        unit="rounds",
        help="Rounds of this device between trainings on its own data only, after the first 3 rounds, which all "
        "train so; 0: never.",
    )

    metrics: str | None = setting(
        None,
        group=_TELLING,
        default_means="not served",
        help="HOST:PORT of this device's Prometheus endpoint; port 0 takes a free one.",
    )
    metrics_textfile: Path | None = setting(
        None,
        group=_TELLING,
        default_means="not written",
        help="File for node_exporter's textfile collector, .prom.",
    )
    share_vitals: bool = setting(
        True,
        group=_TELLING,
        help="Send vitals to the coordinator.",
    )
    share_reasons: bool = setting(
        True,
        group=_TELLING,
        help="Tell the coordinator the unmet preference or limit of a decline; false: only that the device declines.",
    )

    @property
    def tells_metrics(self) -> bool:
        """True if this device's metrics are served or written."""
        return self.metrics is not None or self.metrics_textfile is not None

    @property
    def epsilon_limit(self) -> float | None:
        """The greatest epsilon of this device; None for no limit. Noise that protects nothing is no differential privacy."""
        return REQUIRED_EPSILON if self.max_epsilon is None and self.dp_required else self.max_epsilon

    @property
    def weight_limit(self) -> int:
        """The greatest weight_cap of a masked round that the owner accepts; 0: any."""
        if self.max_weight_cap is None:
            return REQUIRED_WEIGHT_CAP if self.secure == REQUIRED else 0
        return self.max_weight_cap

    @property
    def least_threshold(self) -> str:
        """The smallest threshold of a masked round that the owner accepts: `half` or `two_thirds`."""
        return self.min_threshold or ("two_thirds" if self.secure == REQUIRED else "half")

    def check(self) -> list[tuple[str, ...]]:
        """The task's name, which must exist here, and problems between fields."""
        problems = super().check() + self.refusals(
            task=TASKS.check_name, private=_parse_floor, ups=parse_ups, metrics=parse_address
        )
        if self.reconnect_max_s < self.reconnect_min_s:
            text = f"{self.reconnect_max_s:g} is below reconnect_min_s = {self.reconnect_min_s:g}; make it larger"
            problems.append(("reconnect_max_s", text, "reconnect_min_s"))
        if self.metrics_textfile is not None and self.metrics_textfile.suffix != ".prom":
            text = (
                f"{self.metrics_textfile}: node_exporter reads only files whose names end in .prom; give it such a name"
            )
            problems.append(("metrics_textfile", text))
        if 0 < self.max_memory_mib < _LEAST_MEMORY_MIB:
            text = (
                f"torch itself takes more than {self.max_memory_mib}; at least {_LEAST_MEMORY_MIB}, or 0 for no limit"
            )
            problems.append(("max_memory_mib", text))
        if self.secure == REQUIRED and not is_available():
            text = "masked updates need cryptography, which is not installed; pip install 'fedpatch[secure]'"
            problems.append(("secure", text))
        if self.least_threshold == "two_thirds" and not (self.cert_file and self.ca_file):
            needs = "a certificate of the fleet's CA; set cert_file and ca_file (fedpatch-agent enrol FILE)"
            if self.min_threshold is None:
                half = "min_threshold = half takes unsigned masks, which a coordinator that lies can open"
                text = f"required needs {needs}. {half}"
                problems.append(("secure", text, "cert_file"))
            else:
                problems.append(("min_threshold", f"two_thirds needs {needs}", "cert_file"))
        return problems
