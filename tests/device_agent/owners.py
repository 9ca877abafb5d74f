"""Owners and devices for tests: preferences, and facts of a device in good condition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.download_plan import DownloadPlan, expected_bytes
from fedpatch.device_agent.job.job_effects import Effect
from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import Ready
from fedpatch.device_agent.policy.admission_mode import parse_admission_mode
from fedpatch.device_agent.policy.own_load import OwnLoadAverage
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy, UsageStore
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.policy.unmet_preferences import Preferences
from fedpatch.device_agent.policy.usage import NOTHING, Usage
from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.shared.config.load import load
from fedpatch.shared.wire.reason_codes import LinkKind
from tests.device_agent.jobs import REQUEST
from tests.support.specs import MODEL_SCHEMA, SCHEMA, TASK

READY = Ready(TASK, SCHEMA, 10, MODEL_SCHEMA.specs)
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

WELL = Facts(
    external_power=Fact(True, "supply"),
    battery_percent=Fact(100.0, "battery"),
    under_voltage=Fact(False, "hwmon"),
    throttled=Fact(False, "hwmon"),
    temperature_c=Fact(40.0, "thermal"),
    link=Fact(LinkKind.WIFI, "route"),
    ssid=Fact("home", "wifi"),
    metered=Fact(False, "network"),
    load_per_cpu=Fact(0.1, "loadavg"),
    free_memory_mib=Fact(900.0, "meminfo"),
    free_disk_mib=Fact(9000.0, "statvfs"),
    clock_set=Fact(True, "timex"),
    paused=Fact(False, "pause file"),
)


def limits_of(directory: Path, *, known: bool = True, private: str = "", max_steps: int = 1000) -> OwnerLimits:
    """Limits of an owner, for the model and data of support.specs; if `known`, the training process has reported both."""
    limits = OwnerLimits(directory / "patches", private=private, max_steps=max_steps, max_epochs=100)
    if known:
        limits.take(READY)
    return limits


def facts(**values: Any) -> Facts:
    """Facts of a device in good condition except for `values`; None means an unknown fact."""
    overrides = {
        name: Fact.unknown(f"no {name}") if value is None else Fact(value, name) for name, value in values.items()
    }
    return replace(WELL, **overrides)


def wants(**settings: Any) -> Preferences:
    """Preferences of an owner with these settings, checked as agent.toml is."""
    return Preferences.of(load(PreferenceSettings, file=None, environ={}, flags=settings))


def easy(**settings: Any) -> Preferences:
    """Preferences of an owner with these settings; the default conditions are off."""
    return wants(**({"charging": False, "unmetered": False, "under_voltage_ok": True} | settings))


class Pocketbook:
    """Today's usage, in memory; requests for facts are only counted."""

    def __init__(self) -> None:
        self.asked = 0
        self.today = NOTHING

    def ask(self) -> None:
        self.asked += 1

    def note(self, more: Usage) -> None:
        self.today = self.today.plus(more)


def owner_of(
    book: Pocketbook | None = None,
    admission: str = "always",
    *,
    local: datetime = NOON,
    look_anyway: bool = False,
    usage: UsageStore | None = None,
    is_paused: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> OwnerPolicy:
    """An owner whose clock always shows `local`; the device may work unless `admission` or a preference forbids it."""
    pocketbook = book or Pocketbook()
    return OwnerPolicy(
        parse_admission_mode(admission),
        wants(**settings),
        usage=usage or pocketbook,
        watcher=pocketbook,
        local_now=lambda: local,
        own_memory_mib=lambda: 0.0,
        own_load=OwnLoadAverage(1, 4),
        look_anyway=look_anyway,
        is_paused=is_paused,
    )


class Bench:
    """An owner, and a pocketbook in place of watcher and account."""

    def __init__(
        self, admission: str = "preferences", is_paused: Callable[[], bool] = lambda: False, **settings: Any
    ) -> None:
        terms = {"loss_after_s": 2.0, "return_after_s": 10.0, "pause_limit_s": 60.0, **settings}
        self.book = Pocketbook()
        self.owner = owner_of(self.book, admission, is_paused=is_paused, **terms)

    def see(self, job: Job, found: Facts, *moments: float) -> list[Effect]:
        """Report the same facts at each of these moments."""
        return [
            effect
            for now in moments
            for event in self.owner.update_facts(found, job, [TASK], now)
            for effect in job.handle(event, now)
        ]

    def consider(self, now: float) -> AdmissionDecision | None:
        """Decide on a usual work request."""
        return self.owner.decide(TASK, expected_bytes(REQUEST, DownloadPlan(REQUEST.model)), now)
