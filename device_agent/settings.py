"""What a device agent can be told: in agent.toml, as $FEDPATCH_AGENT_*, as options of `fedpatch-agent run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from device_agent.preference_settings import PreferenceSettings
from shared.broker_settings import CONNECTION, BrokerSettings
from shared.errors import UsageError
from shared.settings import NAME, Pattern, setting
from shared.task import check_name

_WORK = "Work"

_NAME_OR_EMPTY = Pattern(f"({NAME.regex})?", f"empty, or {NAME.words}")
_ADMISSION = Pattern("preferences|always|never|file:.+", "preferences, always, never or file:PATH")


@dataclass(frozen=True, kw_only=True)
class AgentSettings(PreferenceSettings, BrokerSettings):
    """`fedpatch-agent run`: one device of a fleet."""

    env_prefix: ClassVar[str] = "FEDPATCH_AGENT_"

    device_id: str = setting(
        "",
        group=CONNECTION,
        pattern=_NAME_OR_EMPTY,
        default_means="the host's name, made to fit",
        help="Name of the device, unique in its fleet.",
    )
    reconnect_min_s: float = setting(
        1.0,
        group=CONNECTION,
        gt=0.0,
        le=3600.0,
        unit="seconds",
        help="Pause before the first attempt to connect again.",
    )
    reconnect_max_s: float = setting(
        60.0, group=CONNECTION, gt=0.0, le=86_400.0, unit="seconds", help="Longest pause between attempts to connect."
    )

    task: str = setting("digits", group=_WORK, help="Task that the device can train, by name or as module:attribute.")
    data: str = setting(group=_WORK, example="shard:0/10", help="Which data this device holds.")
    data_root: Path | None = setting(  # noqa: RUF009  (a path does not change)
        None, group=_WORK, default_means="FEDPATCH_DATA, else the user's cache", help="Directory of data sets."
    )
    state_dir: Path = setting(  # noqa: RUF009  (a path does not change)
        Path("fedpatch-agent-state"),
        group=_WORK,
        help="Directory for the private patch and unfinished work; made where absent.",
    )
    admission: str = setting(
        "preferences",
        group=_WORK,
        pattern=_ADMISSION,
        help="Whether to take part in rounds: as the preferences say, or whatever they say, always, never or as the first line "
        "of a file says: accept, or decline and why.",
    )
    threads: int = setting(1, group=_WORK, ge=1, le=1024, unit="threads", help="CPU threads to train with.")
    max_model_mib: int = setting(
        512, group=_WORK, ge=1, le=2048, unit="MiB", help="Size above which a model is refused."
    )

    def check(self) -> list[tuple[str, ...]]:
        """The task's name, which must exist here, and problems between fields."""
        problems = super().check()
        try:
            check_name(self.task)
        except UsageError as error:
            problems.append(("task", str(error)))
        if self.reconnect_max_s < self.reconnect_min_s:
            text = f"{self.reconnect_max_s:g} is below reconnect_min_s = {self.reconnect_min_s:g}; make it larger"
            problems.append(("reconnect_max_s", text, "reconnect_min_s"))
        return problems
