"""The private floor in words for people and programs on this device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpatch.device_agent.policy.private_floor import LEAST, Floor, FloorRecord, PrivateFloor, tasks_with_records
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.errors import StateError
from fedpatch.shared.tensors.schema import Schema

DAMAGED = "damaged"
SOURCES = {
    "setting": "the owner's setting",
    "default": "the default",
    "earlier rounds": "it stayed in earlier rounds",
}


def status_of(floor: Floor, schema: Schema) -> dict[str, Any]:
    """Describe a floor for people and programs on this device.

    `below_default` is true if the owner lets more tensors travel than the default, `keeps_nothing` if the owner's setting is
    not `none` but names no tensor of this model.
    """
    of = len([one for one in schema.specs if one.role != "moment"])
    words = f"at least {floor.words}: {len(floor.names)} of {of} tensors of the model never leave this device"
    below = not LEAST.keeps(schema) <= floor.names
    words = f"{words} ({SOURCES[floor.source]})"
    nothing = floor.source == "setting" and floor.words != "none" and not floor.names
    return _status(floor.words, floor.source, words, tensors=sorted(floor.names), below=below, nothing=nothing)


def least_without_model(setting: str, patch_dir: Path, task: str = "") -> dict[str, Any]:
    """Describe the floor as far as it is known without the model.

    Args:
        setting: The owner's setting, "" for the default.
        task: Name of the task; "" for the records of all tasks of this device.

    Returns:
        The same keys as `status_of`; `tensors` are those that stayed private in earlier rounds.

    Raises:
        StateError: The directory cannot be read.
    """
    if setting:
        return _status(
            setting, "setting", f"at least {setting} ({SOURCES['setting']})", below=setting in ("none", "stats")
        )
    kept = FloorRecord()
    with refusals_of(patch_dir):
        known = tasks_with_records(patch_dir)
    try:
        for one in [task] if task else known:
            kept = kept.or_also(PrivateFloor(patch_dir, one).kept())
    except StateError as error:
        return damaged_status(error)
    if kept == FloorRecord():
        return _status(str(LEAST), "default", f"at least {LEAST} ({SOURCES['default']})")
    words = f"at least {LEAST}, and what stayed in earlier rounds: {kept}"
    return _status(str(LEAST), "earlier rounds", words, tensors=sorted(kept.names))


def damaged_status(error: StateError) -> dict[str, Any]:
    """Return the status of a device whose record of what stayed private cannot be read."""
    return _status("", DAMAGED, str(error))


def _status(
    least: str, source: str, words: str, *, tensors: Sequence[str] = (), below: bool = False, nothing: bool = False
) -> dict[str, Any]:
    return {
        "least": least,
        "source": source,
        "tensors": list(tensors),
        "below_default": below,
        "keeps_nothing": nothing,
        "words": words,
    }
