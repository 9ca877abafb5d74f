"""An agent's metrics for a Prometheus of its owner, as text; docs/reference/metrics.md is generated from it.

Written in Prometheus' text format 0.0.4, which endpoints serve and node_exporter reads from files. An unknown
value has no series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.policy.usage import NOTHING, Usage
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.reason_codes import Condition
from fedpatch.shared.wire.vitals import LastRound

_MIB = 2**20
_Labels = tuple[tuple[str, str], ...]
_NO_LABELS: _Labels = ()
_EXPIRY = "Unix time of expiry: ca (first of ca_file), device (first of cert_file)"


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """The state of an agent at one moment.

    `round` is 0 without a job. `willing` is None before the first decision. `model` is user accuracy and time of the
    personal model. `expiry` has the expiry times of certificates. `downloaded` has bytes by way. Times are Unix seconds.
    """

    info: tuple[tuple[str, str], ...]
    state: JobState
    paused: bool
    round: int
    connected: bool
    willing: bool | None
    objections: Set[Condition] = frozenset()
    facts: Facts | None = None
    today: Usage = NOTHING
    allowance: PreferenceSettings
    last_round: LastRound | None = None
    last_round_at: float | None = None
    report: UpdateReport | None = None
    model: tuple[float | None, float] | None = None
    expiry: tuple[tuple[str, float], ...] = ()
    downloaded: tuple[tuple[str, int], ...] = ()

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        lines: list[str] = []
        for name, about, series in self._families():
            values = [(labels, float(value)) for labels, value in series if value is not None]
            if values:
                lines += [f"# HELP fedpatch_agent_{name} {about}", f"# TYPE fedpatch_agent_{name} gauge"]
                lines += [f"fedpatch_agent_{name}{_braced(labels)} {value!r}" for labels, value in values]
        return "".join(f"{line}\n" for line in lines)

    def _families(self) -> Iterator[tuple[str, str, Iterable[tuple[_Labels, float | None]]]]:
        yield "info", "Always 1; task is empty until it is loaded", [(self.info, 1)]
        states = [((("state", str(state)),), state is self.state) for state in JobState]
        yield "state", "1 for the current state of the job: idle, downloading, training, uploading", states
        objections = [((("condition", str(one)),), one in self.objections) for one in Condition]
        yield "objection", "1 for each unmet condition of the owner, 0 for the others", objections
        link = self.facts.link.value if self.facts else None
        yield (
            "link",
            "Always 1; link to the broker: loopback, ethernet, wifi, cellular, other",
            [((("kind", str(link)),), 1)] if link else [],
        )
        plain = {**self._work(), **self._found(), **self._spent(), **self._rounds()}
        for name, (about, value) in plain.items():
            yield name, about, [(_NO_LABELS, value)]
        if self.report:
            accuracies = (("before", self.report.user_accuracy_before), ("after", self.report.user_accuracy_after))
            measured = [((("moment", moment),), value) for moment, value in accuracies]
            yield (
                "user_accuracy",
                "User accuracy on its test data, before and after the last training",
                measured,
            )
        downloaded = [((("way", way),), size_bytes) for way, size_bytes in self.downloaded]
        yield "downloaded_bytes", "Bytes of models since its start, by way: mqtt, url", downloaded
        expiry = [((("certificate", name),), when) for name, when in self.expiry]
        yield "certificate_expiry_timestamp_seconds", _EXPIRY, expiry

    def _work(self) -> Mapping[str, tuple[str, float | None]]:
        return {
            "paused": ("1 while the owner's conditions pause the job", self.paused),
            "round_number": ("Number of the current round; 0: none", self.round),
            "broker_connected": ("1 while the broker is connected", self.connected),
            "willing": ("1 if it would accept work now; absent with admission by a file", self.willing),
        }

    def _found(self) -> Mapping[str, tuple[str, float | None]]:
        if self.facts is None:
            return {}
        return {metric.name: (metric.about, value) for metric, value in self.facts.metrics()}

    def _spent(self) -> Mapping[str, tuple[str, float | None]]:
        spent, may = self.today, self.allowance
        return {
            "rounds_today": ("Rounds on this local day", spent.rounds),
            "rounds_allowed_today": (
                "Setting max_rounds_per_day",
                may.max_rounds_per_day,
            ),
            "traffic_today_bytes": ("Traffic on this local day", spent.traffic_bytes),
            "traffic_allowed_today_bytes": ("Setting max_mib_per_day", _product(may.max_mib_per_day, _MIB)),
            "training_today_seconds": ("Training time on this local day", spent.training_s),
            "training_allowed_today_seconds": (
                "Setting max_minutes_per_day",
                _product(may.max_minutes_per_day, 60),
            ),
        }

    def _rounds(self) -> Mapping[str, tuple[str, float | None]]:
        last, (accuracy, made_at) = self.last_round, self.model or (None, None)
        return {
            "last_round_timestamp_seconds": (
                "Unix time of the last committed update",
                self.last_round_at,
            ),
            "last_round_train_seconds": ("Training time in that round", last.train_s if last else None),
            "last_round_upload_seconds": (
                "Upload time in that round",
                last.upload_s if last else None,
            ),
            "model_user_accuracy": (
                "User accuracy of the personal model when it was made",
                accuracy,
            ),
            "model_timestamp_seconds": ("Unix time when the personal model was made", made_at),
        }


def _braced(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _product(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
