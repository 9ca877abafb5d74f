"""Every error that fedpatch raises on purpose.

    FedpatchError                 exit code 1: it ran, but it failed
    ├── UsageError                exit code 2: an option, a name or a configuration file is wrong
    │   └── ConfigError           ... several of them at once, each with its place
    ├── BrokerError               exit code 3: the MQTT broker cannot be used
    ├── DataError                 a data set is absent, damaged or too small for what is asked of it
    ├── StateError                a file that fedpatch wrote itself is damaged or of another version
    ├── SchemaMismatch            tensors have other names, shapes or dtypes than agreed
    │   └── UnexpectedTensors     ... names that nobody agreed on (in shared.tensors)
    ├── ExportRefused             a model must not be handed to applications: no ONNX, or one that computes something else
    ├── UpdateRefused             a device's update must not enter the aggregate
    ├── CannotTell                a source of facts about the device has no answer (in device_agent.conditions.bounded)
    ├── IllegalTransition         ours: the program drove a state machine against its table
    └── WireError                 theirs: bytes from the network are not a fedpatch message

A command prints the message (never a traceback) and leaves with `exit_code`. An error names the thing and the mend.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

EXIT_LESS = 4
"""A command did less than was asked, and printed what: no error, and not what a script may take for success."""


class FedpatchError(Exception):
    """Base of all; anything else that escapes is a bug."""

    exit_code = 1


class UsageError(FedpatchError):
    """The user asked for something that cannot be."""

    exit_code = 2


class ConfigError(UsageError):
    """All problems of a configuration, found in one pass.

    `problems` holds one sentence each, beginning with the place (`agent.toml:3: ...`, `--quorum: ...`).
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class BrokerError(FedpatchError):
    """The broker is unreachable, refuses us, or cannot carry what we must send."""

    exit_code = 3


class DataError(FedpatchError):
    """A data file or data specification is wrong."""


class StateError(FedpatchError):
    """A file of ours (checkpoint, patch, registry) cannot be read back."""


class SchemaMismatch(FedpatchError):
    """Named tensors do not fit the schema that both sides agreed on."""


class ExportRefused(FedpatchError):
    """A model cannot be written as ONNX, or what was written does not compute what the model does."""


class UpdateRefused(FedpatchError):
    """An update that is well formed but not acceptable.

    `reason` is one of a closed set of words, for counters and for the device; the message is for people.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class IllegalTransition(FedpatchError):
    """An event that the transition table does not have; the machine is as it was before."""


class WireError(FedpatchError):
    """What came from the network is not ours, damaged, or beyond a limit."""


def unknown_name(kind: str, name: str, known: Sequence[str]) -> UsageError:
    """Error for a name that does not exist, with the nearest one that does."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {kind} {name!r}{hint} (known: {', '.join(sorted(known))})")
