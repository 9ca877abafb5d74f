"""The defaults that follow from another setting: of masked rounds, buffered rounds, and strategies with control variates."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fedpatch.coordinator.masking.masked_groups import MAX_GROUP_OF_U8, largest_group
from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS
from fedpatch.shared.wire.plan_terms import CONTROL


def of_round(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of buffered rounds (`late`), of a masked run (`secure`) and of control variates (`strategy`).

    Args:
        values: The settings, with their usual defaults.
    """
    fitting: dict[str, Any] = fitting_grace(values)
    if values["secure"] == "off":
        has_controls = CONTROL in shared_moments(values["strategy"])
        return fitting | ({"norm_bound": "auto:3", "max_num_examples": "off"} if has_controls else {})
    return fitting | {
        "strategy": "fedavg",
        "norm_bound": "off",
        "max_num_examples": "off",
        "aggregate": "mean",
        "encoding": MASKED_ENCODINGS[_needs_16_bits(values)],
        "devices": max(values["devices"], values["min_group"]),
    }


def of_signed_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of a masked run over a real fleet, whose members sign their keys."""
    return {"threshold": "two_thirds"} if values["secure"] != "off" else {}


def fitting_grace(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of `grace_s` of buffered rounds, where a device after the quorum loses nothing."""
    return {"grace_s": 0.0} if values["late"] == "carry" else {}


def _needs_16_bits(values: Mapping[str, Any]) -> bool:
    largest = largest_group(values["group_size"], values["min_group"])
    return bool(largest > MAX_GROUP_OF_U8 or values["dp"] == "distributed")


def shared_moments(strategy: str) -> tuple[str, ...]:
    """Return the moments that devices share; none for a strategy that cannot be found: the check of settings reports it."""
    from fedpatch.coordinator.find_strategy import find_strategy

    with suppress(UsageError):
        return find_strategy(strategy).moments
    return ()
