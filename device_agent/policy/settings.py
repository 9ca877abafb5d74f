"""Settings of the owner's preferences for `fedpatch-agent run`, explained in docs/reference/preferences.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedpatch.device_agent.policy.preference_rules import ALLOWED_IF_UNKNOWN
from fedpatch.device_agent.policy.quiet_hours import parse_quiet_hours
from fedpatch.shared.config.fields import Settings, setting
from fedpatch.shared.errors import UsageError, unknown_name

_WANTS = "Preferences"
_DAILY = "Daily allowance"
_LOSS = "Lost preferences during work"

_wants, _daily, _loss = (partial(setting, group=group) for group in (_WANTS, _DAILY, _LOSS))

ON_LOSS = ("finish", "pause", "abandon")


@dataclass(frozen=True, kw_only=True)
class PreferenceSettings(Settings):
    """The keys of an owner's preferences; they are at the top level of agent.toml like all others."""

    charging: bool = _wants(True, help="Work only on external power.")
    min_battery: int = _wants(0, ge=0, le=100, unit="percent", help="Least charge of the battery.")
    under_voltage_ok: bool = _wants(False, help="Work also with too weak a power supply.")
    unmetered: bool = _wants(True, help="Work only over an unmetered connection.")
    wifi: bool = _wants(False, help="Work only over WiFi or Ethernet.")
    ssids: tuple[str, ...] = _wants((), default_means="any", help="Allowed WiFi networks; Ethernet stays allowed.")
    max_temperature: float | None = _wants(
        None, ge=-50.0, le=150.0, unit="°C", help="Highest temperature of the processor."
    )
    max_load: float | None = _wants(None, gt=0.0, le=1000.0, help="Highest load per CPU, without the agent's own load.")
    min_free_memory_mib: int = _wants(
        0, ge=0, le=2**30, unit="MiB", help="Least available memory, the agent's own included."
    )
    min_free_disk_mib: int = _wants(0, ge=0, le=2**40, unit="MiB", help="Least free space for the state directory.")
    clock_set: bool = _wants(False, help="Work only after the clock was synchronised.")
    quiet_hours: tuple[str, ...] = _wants(
        (), default_means="none", help="Hours without work, such as 22:00-07:00 or mon-fri 08:00-18:00."
    )
    allowed_tasks: tuple[str, ...] = _wants((), default_means="any", help="Names of allowed tasks.")
    unknown: tuple[str, ...] = _wants(
        (), default_means="see preferences.md", help="For unknown facts: PREFERENCE=allow or PREFERENCE=deny."
    )

    max_rounds_per_day: int | None = _daily(None, ge=1, le=10**6, unit="rounds", help="Rounds per day.")
    max_mib_per_day: int | None = _daily(
        None, ge=1, le=2**30, unit="MiB", help="Traffic per day, of all messages and models both ways."
    )
    max_minutes_per_day: int | None = _daily(None, ge=1, le=1440, unit="minutes", help="Training time per day.")

    on_loss: str = _loss("pause", choices=ON_LOSS, help="Action for work in progress: finish, pause or abandon.")
    loss_after_s: float = _loss(2.0, ge=0.0, le=3.0, unit="seconds", help="Time unmet before work stops.")
    return_after_s: float = _loss(30.0, ge=0.0, le=86_400.0, unit="seconds", help="Time met before work resumes.")
    pause_limit_s: float = _loss(
        600.0, ge=0.0, le=86_400.0, unit="seconds", help="Longest pause before work is given up."
    )

    def check(self) -> list[tuple[str, ...]]:
        """Return the problems of quiet hours and preferences that are not valid."""
        return super().check() + self.refusals(quiet_hours=parse_quiet_hours, unknown=parse_unknown)


def parse_unknown(entries: Sequence[str]) -> dict[str, bool]:
    """Return whether work is allowed while a preference's fact is unknown, for every preference that depends on a fact.

    Each entry is `PREFERENCE=allow` or `PREFERENCE=deny`; UsageError for all other entries, and for contradictions.
    """
    chosen: dict[str, bool] = {}
    problems = []
    for entry in entries:
        name, _, word = (part.strip() for part in entry.partition("="))
        if name not in ALLOWED_IF_UNKNOWN:
            problems.append(str(unknown_name("preference", name, tuple(ALLOWED_IF_UNKNOWN))))
        elif word not in ("allow", "deny"):
            problems.append(f"{entry!r} must end in =allow or =deny")
        elif chosen.setdefault(name, word == "allow") != (word == "allow"):
            problems.append(f"{name} is set to allow and to deny; keep one of the two")
    if problems:
        raise UsageError("; ".join(problems))
    return {**ALLOWED_IF_UNKNOWN, **chosen}
