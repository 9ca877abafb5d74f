"""Calls of a strategy, which may be of another package: its errors name the class and the line, and its results are checked."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.shared.errors import FedpatchError, UsageError
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors


def apply_strategy(strategy: Strategy, state: ServerState, mean: dict[str, Array], schema: Schema) -> ServerState:
    """Return the state after a round, by the strategy's `finish`.

    Args:
        state: The state before the round.
        mean: The mean of the round's updates, by name.
        schema: The public model without moments.

    Raises:
        UsageError: `finish` failed, or returned no state, or tensors of other names, shapes or dtypes.
    """
    with _faults_of(strategy, "finish"):
        after = strategy.finish(state, mean, schema)
    problem = ""
    if not isinstance(after, ServerState):
        problem = f"finish returned {type(after).__name__}, not a ServerState; return replace(super().finish(...), ...)"
    elif difference := _difference(after.tensors, state.tensors):
        problem = (
            f"finish returned other tensors ({difference}); keep names and shapes, and use .astype(mean[name].dtype)"
        )
    if problem:
        raise UsageError(f"strategy {strategy.name!r}: {problem}")
    return after


def begin_strategy(strategy: Strategy, tensors: Tensors, schema: Schema) -> ServerState:
    """Return the state before the first round, after a trial of the whole strategy with a mean that equals the model.

    Args:
        tensors: The initial public model.
        schema: The public model without moments.

    Raises:
        UsageError: The strategy failed, or returned what no later round could use.
    """
    with _faults_of(strategy, "init"):
        state = strategy.init(tensors, schema)
    if not isinstance(state, ServerState):
        raise UsageError(f"strategy {strategy.name!r}: init returned {type(state).__name__}, not a ServerState")
    apply_strategy(strategy, state, dict(state.tensors), schema)
    return state


@contextmanager
def _faults_of(strategy: Strategy, method: str) -> Iterator[None]:
    """Turn any error of a strategy's method into a UsageError that names strategy, method and line: the class is the user's."""
    try:
        yield
    except FedpatchError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(f"{type(error).__name__}: {error}".split())
        inside = f" ({PurePath(frame.filename).name}, line {frame.lineno})" if frame.filename != __file__ else ""
        raise UsageError(
            f"strategy {strategy.name!r}: {method} failed: {words}; correct the class {type(strategy).__name__}{inside}"
        ) from error


def _difference(found: Tensors, known: Tensors) -> str:
    for name in sorted(found.keys() | known.keys()):
        kinds = [f"{one[name].dtype} of shape {one[name].shape}" if name in one else "absent" for one in (found, known)]
        if kinds[0] != kinds[1]:
            return f"{name}: {kinds[0]}, before {kinds[1]}"
    return ""
