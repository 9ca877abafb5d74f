"""Federated learning over MQTT for fleets of small devices, with a private patch on each of them.

The names in `__all__` are the public API. Every other name may change in any release.

    from fedpatch import DeviceData, Task, metrics, splits   # to write a task
    from fedpatch import Schema, ServerState, Strategy       # to write a strategy
    from fedpatch import PersonalModel                       # to use a device's model in an application

`import fedpatch` loads neither NumPy nor PyTorch: what needs them is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedpatch.shared import __version__
from fedpatch.shared.errors import (
    BrokerError,
    ConfigError,
    DataError,
    ExportRefused,
    FedpatchError,
    SchemaMismatch,
    StateError,
    UpdateRefused,
    UsageError,
)

if TYPE_CHECKING:
    from fedpatch.coordinator.aggregation.strategies import ServerState, Strategy
    from fedpatch.device_agent.models.personal import PersonalModel
    from fedpatch.shared.tasks import metrics, splits
    from fedpatch.shared.tasks.task import DeviceData, Task, data_root
    from fedpatch.shared.tasks.torch_model import private_names
    from fedpatch.shared.tensors.schema import Schema, TensorSpec

__all__ = [
    "BrokerError",
    "ConfigError",
    "DataError",
    "DeviceData",
    "ExportRefused",
    "FedpatchError",
    "PersonalModel",
    "Schema",
    "SchemaMismatch",
    "ServerState",
    "StateError",
    "Strategy",
    "Task",
    "TensorSpec",
    "UpdateRefused",
    "UsageError",
    "__version__",
    "data_root",
    "metrics",
    "private_names",
    "splits",
]

_LOADED_AT_FIRST_USE = {
    "DeviceData": "fedpatch.shared.tasks.task",
    "PersonalModel": "fedpatch.device_agent.models.personal",
    "Schema": "fedpatch.shared.tensors.schema",
    "ServerState": "fedpatch.coordinator.aggregation.strategies",
    "Strategy": "fedpatch.coordinator.aggregation.strategies",
    "TensorSpec": "fedpatch.shared.tensors.schema",
    "Task": "fedpatch.shared.tasks.task",
    "data_root": "fedpatch.shared.tasks.task",
    "metrics": "fedpatch.shared.tasks",
    "private_names": "fedpatch.shared.tasks.torch_model",
    "splits": "fedpatch.shared.tasks",
}


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name not in _LOADED_AT_FIRST_USE:
        raise AttributeError(f"module 'fedpatch' has no attribute {name!r}")
    place = _LOADED_AT_FIRST_USE[name]
    found = import_module(f"{place}.{name}") if name in ("metrics", "splits") else getattr(import_module(place), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
