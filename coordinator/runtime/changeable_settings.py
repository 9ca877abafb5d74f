"""The settings that may change during a run; with any other change `fedpatch run` starts a new run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final

from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import public_values
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS
from fedpatch.shared.wire.messages import ENCODINGS

MAY_CHANGE: Final = frozenset(
    {
        *(option.name for option in fields(BrokerSettings)),
        *("state_dir", "state", "ca_dir", "standby", "encoding", "devices", "wait_s", "deadline_s"),
        *("independent_every", "evaluate_every", "evaluate_participation"),
        *("metrics", "metrics_max_devices", "tracker", "traces", "models_store", "models_url"),
        # Their defaults have changed: a run of an earlier version continues with the present defaults.
        *("norm_bound", "chunk_kib"),
    }
)
"""Settings that may change during a run: a run is resumed although they differ."""


_FORMER: Final[Mapping[str, Callable[[object], bool]]] = {
    "keep": lambda value: value != 1,
    "aggregate": lambda value: str(value).partition(":")[0] == "bucketed",
}
"""Terms of a run that only earlier versions know, by setting."""


def former_terms(run: RunInfo) -> dict[str, object]:
    """Return the settings by which a run used a feature that only earlier versions have, by name."""
    stored = run.settings
    return {name: stored[name] for name, is_former in _FORMER.items() if name in stored and is_former(stored[name])}


def former_encoding(run: RunInfo) -> str:
    """Return the encoding of a run if only earlier versions have it, else ""; such a run needs another one."""
    used = str(run.settings.get("encoding", RunSettings.encoding))
    return "" if used in (*ENCODINGS, *MASKED_ENCODINGS) else used


def has_same_terms(run: RunInfo, settings: RunSettings) -> bool:
    """Return whether a run has these settings, apart from settings that may change during a run."""
    if former_terms(run):
        return False
    now = public_values(settings)
    return all(run.settings[name] == now[name] for name in now.keys() & run.settings.keys() - MAY_CHANGE)
