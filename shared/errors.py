"""Every error that fedpatch raises on purpose.

    FedpatchError                 exit code 1: it ran, but it failed
    ├── UsageError                exit code 2: an option, a name or a configuration file is wrong
    │   └── ConfigError           ... several of them at once, each with its place
    ├── BrokerError               exit code 3: the MQTT broker cannot be used
    ├── DataError                 a data set is absent, damaged or too small for what is asked of it
    ├── StateError                a file that fedpatch wrote itself is damaged or of another version
    ├── SchemaMismatch            tensors have other names, shapes or dtypes than agreed
    │   └── UnexpectedTensors     ... names that nobody agreed on (in shared.tensors.arrays)
    ├── ExportRefused             a model must not be handed to applications: no ONNX, or one that computes something else
    ├── UpdateRefused             a device's update must not enter the aggregate
    ├── FactUnavailable           a source of facts about the device has no answer (in device_agent.sensors.timeouts)
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
    """Base of all errors that fedpatch raises; any other exception that escapes is a bug.

    `exit_code` is the exit code of a command that ends with this error.

    Example:
        >>> from fedpatch import DataError, FedpatchError
        >>> issubclass(DataError, FedpatchError), DataError.exit_code
        (True, 1)
    """

    exit_code = 1


class UsageError(FedpatchError):
    """An option, a name or a configuration is wrong. A task's `load_data` raises it for a data spec that cannot be read.

    Example:
        >>> from fedpatch import UsageError
        >>> raise UsageError("data spec 'shard:11/10': the shard must be below 10")
        Traceback (most recent call last):
        fedpatch.shared.errors.UsageError: data spec 'shard:11/10': the shard must be below 10
    """

    exit_code = 2


class ConfigError(UsageError):
    """All problems of a configuration, found in one pass.

    Args:
        problems: One sentence each, beginning with the place (`agent.toml:3: ...`, `--quorum: ...`).

    Example:
        >>> from fedpatch import ConfigError
        >>> ConfigError(["agent.toml:3: no such setting"]).problems
        ('agent.toml:3: no such setting',)
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class BrokerError(FedpatchError):
    """The broker is unreachable, refuses the connection, or cannot carry the messages.

    Example:
        >>> from fedpatch import BrokerError
        >>> BrokerError.exit_code
        3
    """

    exit_code = 3


class DataError(FedpatchError):
    """Data are absent, damaged or too few. A task's `load_data` raises it.

    Example:
        >>> from fedpatch import DataError
        >>> str(DataError("readings.csv: holds no reading yet"))
        'readings.csv: holds no reading yet'
    """


class StateError(FedpatchError):
    """A file that fedpatch wrote (checkpoint, patch, registry) is damaged or of another version.

    Example:
        >>> from fedpatch import StateError
        >>> StateError.exit_code
        1
    """


class SchemaMismatch(FedpatchError):
    """Names, shapes or dtypes of tensors are not those that coordinator and device agreed on.

    Example:
        >>> from fedpatch import SchemaMismatch
        >>> SchemaMismatch.exit_code
        1
    """


class ExportRefused(FedpatchError):
    """A model cannot be exported as ONNX, or the export computes something else than the model.

    Example:
        >>> from fedpatch import ExportRefused
        >>> ExportRefused.exit_code
        1
    """


class UpdateRefused(FedpatchError):
    """An update is well formed but not acceptable.

    Args:
        reason: One of a closed set of words (`fedpatch.shared.wire.reason_codes.RefuseReason`), for counters and the device.
        message: Text for people.

    Example:
        >>> from fedpatch import UpdateRefused
        >>> UpdateRefused("not_finite", "fc1.weight holds NaN").reason
        'not_finite'
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
