"""Errors that fedpatch raises on purpose, and their exit codes.

    FedpatchError                 exit code 1: the command ran and failed
    ├── UsageError                exit code 2: an option, a name or a configuration file is wrong
    │   └── ConfigError           all problems of a configuration, each with its place
    ├── BrokerError               exit code 3: the MQTT broker cannot be used
    ├── StoreUnavailable          exit code 3: the object store of `blobs` cannot be used
    ├── LeadershipLost            exit code 5: another coordinator leads the fleet
    ├── DataError                 a data set is absent, damaged or too small
    ├── StateError                a file that fedpatch wrote is damaged or of another version
    │   ├── StateUnreadable       it cannot be read now, and may be whole
    │   └── StateDirectoryLost    the state directory was deleted or replaced during a run
    ├── SchemaMismatch            tensors have other names, shapes or dtypes than the schema
    │   └── UnexpectedTensors     there are tensors that the schema does not have (in shared.tensors.schema)
    ├── ExportRefused             a model cannot be exported as ONNX, or its export computes other values
    ├── UpdateRefused             a device's update must not enter the aggregate
    ├── FactUnavailable           a sensor cannot read its value (in device_agent.sensors.timeouts)
    ├── IllegalTransition         a fault of this program: an event that the transition table does not have
    └── WireError                 a fault of the peer: bytes from the network are not a valid message

A command prints the message, never a traceback, and exits with `exit_code`. A message names the faulty part and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

EXIT_LESS = 4
"""Exit code of a command that did only a part of its work, and printed which: neither an error nor a success."""

EXIT_LED = 5
"""Exit code of a coordinator that was paused or cut off while a standby took over."""

EXIT_CODES: Mapping[int, tuple[str, str]] = {
    0: ("success: a run reached its target, last round or time limit; SIGTERM stopped agent or relay", ""),
    1: (
        "failure: a run that failed or had no successful round, unusable data or state, a failed check, `status` without "
        "agent or relay",
        "apply the remedy, repeat",
    ),
    2: ("wrong option, name or configuration", "correct it, repeat"),
    3: ("unreachable or unusable broker or object store", "repeat later"),
    EXIT_LESS: (
        "`fedpatch export` wrote an earlier round, because the newest checkpoint is damaged",
        "restore the named file",
    ),
    EXIT_LED: (
        "another coordinator took over while this one was paused or disconnected",
        "start it again; with `standby` it waits, without it end the other coordinator first",
    ),
    130: (
        "Ctrl-C, for runs and simulations also SIGTERM; a run and a simulation with `--out` are saved",
        "`fedpatch resume`, or the same `simulate` command",
    ),
}
"""All exit codes: meaning, and what a caller can do."""


class FedpatchError(Exception):
    """Base class of all errors that fedpatch raises. Any other exception that escapes is a bug.

    `exit_code` is the exit code of a command that ends with this error.

    Example:
        >>> from fedpatch import DataError, FedpatchError
        >>> issubclass(DataError, FedpatchError), DataError.exit_code
        (True, 1)
    """

    exit_code = 1


class UsageError(FedpatchError):
    """Wrong option, name or configuration. A task's `load_data` raises it for a data spec that it cannot parse.

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
    """The broker is unreachable, refuses the connection, or does not accept messages of the needed size.

    Args:
        message: Sentence for people.
        remedy: The remedy at its end, where a certificate was refused.

    Example:
        >>> from fedpatch import BrokerError
        >>> BrokerError.exit_code
        3
    """

    exit_code = 3

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(message)


class StoreUnavailable(FedpatchError):
    """The object store is unreachable or refuses a request. No StateError: what is stored there is not damaged."""

    exit_code = 3


class LeadershipLost(FedpatchError):
    """Another coordinator leads the fleet, and nothing of this one is written any more."""

    exit_code = EXIT_LED


class LeadershipGivenUp(LeadershipLost):
    """This coordinator had no broker, and let a standby that reaches the broker take over."""


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


class StateUnreadable(StateError):
    """A file that fedpatch wrote cannot be read now. It may be whole, so no caller treats it as damaged or lost.

    Example:
        >>> from fedpatch.shared.errors import StateUnreadable
        >>> issubclass(StateUnreadable, StateError)
        True
    """


class StateDirectoryLost(StateError):
    """The state directory of a running coordinator was deleted or replaced. Nothing is written to the new one."""


class SchemaMismatch(FedpatchError):
    """Names, shapes or dtypes of tensors are not those of the schema.

    Example:
        >>> from fedpatch import SchemaMismatch
        >>> SchemaMismatch.exit_code
        1
    """


class ExportRefused(FedpatchError):
    """A model cannot be exported as ONNX, or the export computes other values than the model.

    Example:
        >>> from fedpatch import ExportRefused
        >>> ExportRefused.exit_code
        1
    """


class UpdateRefused(FedpatchError):
    """An update is well formed but not acceptable.

    Args:
        reason: A member of `fedpatch.shared.wire.reason_codes.RefuseReason`, which is counted and sent to the device.
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
    """A state machine received an event that its transition table does not have. The state is unchanged."""


class WireError(FedpatchError):
    """Bytes from the network are foreign, damaged or beyond a limit."""


class DamagedChunk(WireError):
    """The checksum of a chunk differs from its data: the link, or the memory of a machine, has changed it."""


def problem_and_remedy(message: str) -> tuple[str, str]:
    """Return the two parts of an error's message: what is wrong, and what follows the last semicolon; without one, all twice.

    Example:
        >>> problem_and_remedy("patch: is damaged; delete it")
        ('patch: is damaged', 'delete it')
    """
    problem, _, remedy = message.rpartition("; ")
    return problem or message, remedy


def unknown_name(kind: str, name: str, known: Sequence[str]) -> UsageError:
    """Return the error for a name that does not exist; its message suggests the nearest known name.

    Args:
        kind: Noun for the message, such as `task`.

    Returns:
        The error, for the caller to raise.
    """
    nearest = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return UsageError(f"unknown {kind} {name!r}{hint} (known: {', '.join(sorted(known))})")
