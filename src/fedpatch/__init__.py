"""Federated learning over MQTT for fleets of small devices, with a private patch on each of them.

The names in `__all__` are the public API. Every other name may change in any release.

    from fedpatch import DeviceData, Task, examples, metrics, splits   # to write a task
    from fedpatch import Schema, ServerState, Strategy       # to write a strategy
    from fedpatch import PersonalModel                       # to use a device's model in an application
    from fedpatch import Client, run, simulate               # to train and evaluate in a script or a notebook

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
    from fedpatch import examples, metrics, splits
    from fedpatch.coordinator.aggregation.server_state import ServerState
    from fedpatch.coordinator.aggregation.strategy import Strategy
    from fedpatch.coordinator.api.client import Client
    from fedpatch.coordinator.api.events import RoundEnded, RoundOpened, RunMessage
    from fedpatch.coordinator.api.running import run, start_run
    from fedpatch.coordinator.rounds.run_summary import RunSummary
    from fedpatch.device_agent.models.personal import PersonalModel
    from fedpatch.shared.scripting.jobs import BackgroundJob
    from fedpatch.shared.tasks.downloads import DataFile
    from fedpatch.shared.tasks.task import DeviceData, Task, data_root
    from fedpatch.shared.tasks.torch_model import private_names
    from fedpatch.shared.tensors.schema import Schema, TensorSpec
    from fedpatch.simulator.experiment.user_study import simulate, start_simulation
    from fedpatch.simulator.spec.study import Outcome

__all__ = [
    "BackgroundJob",
    "BrokerError",
    "Client",
    "ConfigError",
    "DataError",
    "DataFile",
    "DeviceData",
    "ExportRefused",
    "FedpatchError",
    "Outcome",
    "PersonalModel",
    "RoundEnded",
    "RoundOpened",
    "RunMessage",
    "RunSummary",
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
    "examples",
    "metrics",
    "private_names",
    "run",
    "simulate",
    "splits",
    "start_run",
    "start_simulation",
]

_LOADED_AT_FIRST_USE = {
    "BackgroundJob": "fedpatch.shared.scripting.jobs",
    "Client": "fedpatch.coordinator.api.client",
    "DataFile": "fedpatch.shared.tasks.downloads",
    "DeviceData": "fedpatch.shared.tasks.task",
    "Outcome": "fedpatch.simulator.spec.study",
    "PersonalModel": "fedpatch.device_agent.models.personal",
    "Schema": "fedpatch.shared.tensors.schema",
    "ServerState": "fedpatch.coordinator.aggregation.server_state",
    "Strategy": "fedpatch.coordinator.aggregation.strategy",
    "TensorSpec": "fedpatch.shared.tensors.schema",
    "RoundEnded": "fedpatch.coordinator.api.events",
    "RoundOpened": "fedpatch.coordinator.api.events",
    "RunMessage": "fedpatch.coordinator.api.events",
    "RunSummary": "fedpatch.coordinator.rounds.run_summary",
    "Task": "fedpatch.shared.tasks.task",
    "data_root": "fedpatch.shared.tasks.task",
    "private_names": "fedpatch.shared.tasks.torch_model",
    "run": "fedpatch.coordinator.api.running",
    "simulate": "fedpatch.simulator.experiment.user_study",
    "start_run": "fedpatch.coordinator.api.running",
    "start_simulation": "fedpatch.simulator.experiment.user_study",
}


_MODULES = ("examples", "metrics", "splits")


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name in _MODULES:
        return import_module(f"fedpatch.{name}")
    if name not in _LOADED_AT_FIRST_USE:
        raise AttributeError(f"module 'fedpatch' has no attribute {name!r}")
    found = getattr(import_module(_LOADED_AT_FIRST_USE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
