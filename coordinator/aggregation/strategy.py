"""The base class of strategies, and the strategies without an optimizer on the server.

A strategy is the three columns of the paper's Table 1. Its device side, LocalUpdate, is data, a TrainPlan. Its server side is
two pure functions, `init` and `finish`, around the weighted mean of the round's updates
(coordinator.aggregation.weighted_mean). coordinator.strategies.server_optimizer has the strategies with an optimizer on
the server, coordinator.find_strategy finds a strategy by its name.

    strategy       LocalUpdate   GlobalModelUpdate   GlobalOptimUpdate
    fedavg         SGD           average             -
    fedavg-adam    Adam          average             average

McMahan et al. 2017 (FedAvg); Mills, Hu and Min 2021 (FedAvg-Adam).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import ClassVar

import numpy as np

from fedpatch.coordinator.aggregation.limit_settings import AggregateRule
from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.norm_clipping import References
from fedpatch.shared.errors import FedpatchError, UsageError
from fedpatch.shared.tensors.arrays import MOMENTS, Array, Schema, Tensors
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import CONTROL


@dataclass(frozen=True)
class ServerState:
    """The state of the server between two rounds. Arrays are never changed in place.

    Args:
        round: Number of completed rounds.
        tensors: The public global model and the moments that clients share, by name. Devices download these.
        server: The tensors of the server optimizer by name, which stay on the coordinator.
        references: Norms of earlier rounds' updates (coordinator.aggregation.norm_clipping).
        counted: The last round whose aggregate has a device's update, by device, where devices keep control variates
            (coordinator.strategies.server_optimizer.Scaffold).
        population: N, the number of devices over which the control variate in `tensors` is the mean; 0: none yet.
        scale: In a masked run the ranges and the clip of the next round (coordinator.aggregation.masked_mean).

    Example:
        >>> import numpy as np
        >>> from fedpatch import ServerState
        >>> ServerState(round=3, tensors={"fc.bias": np.zeros(2, np.float32)}, server={}).round
        3
    """

    round: int
    tensors: dict[str, Array]
    server: dict[str, Array]
    references: References = field(default_factory=dict)
    scale: MaskedScale | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    population: int = 0


@dataclass(frozen=True)
class Strategy:
    """Base class of the strategies, with FedAvg's server side. The class variables describe the training on a device.

    A strategy of your own is a subclass: it sets its name, and overrides `finish` (and `optimizer_schema`, if its server keeps
    tensors from round to round). Each argument `schema` describes the public model without moments. Arrays are NumPy's; those
    of a state are never changed in place.

    The class variables of a subclass:

        name: 1 to 32 lower-case letters, digits, `-` and `_`.
        description: One line for lists of strategies.
        client_optimizer: "sgd" or "adam", the optimizer of the devices.
        moments: Moments of the client optimizer that travel and are averaged, a selection of MOMENTS.
        rates_of: The strategy whose learning rates of a task apply if the task has none for this strategy.
        beta_1, beta_2, epsilon: Constants of the client optimizer, if that is Adam.

    Example:
        >>> import numpy as np
        >>> from dataclasses import dataclass, replace
        >>> from fedpatch import Schema, Strategy, TensorSpec
        >>> @dataclass(frozen=True)
        ... class HalfStep(Strategy):
        ...     name = "half-step"
        ...     description = "clients SGD, server half of the way to the mean"
        ...     def finish(self, state, mean, schema):
        ...         after = super().finish(state, mean, schema)
        ...         half = {name: ((state.tensors[name] + mean[name]) / 2).astype(mean[name].dtype) for name in mean}
        ...         return replace(after, tensors=half)
        >>> schema = Schema((TensorSpec("fc.bias", (2,), "float32", "weight"),))
        >>> strategy, ones = HalfStep(), {"fc.bias": np.ones(2, np.float32)}
        >>> state = strategy.init({"fc.bias": np.zeros(2, np.float32)}, schema)
        >>> strategy.finish(state, ones, schema).tensors["fc.bias"]
        array([0.5, 0.5], dtype=float32)
    """

    name: ClassVar[str]
    description: ClassVar[str]
    client_optimizer: ClassVar[str] = "sgd"
    rates_of: ClassVar[str] = "fedavg"
    moments: ClassVar[tuple[str, ...]] = ()
    beta_1: ClassVar[float] = 0.9
    beta_2: ClassVar[float] = 0.999
    epsilon: ClassVar[float] = 1e-7

    @property
    def has_controls(self) -> bool:
        """True if devices keep control variates; then each of them counts alike."""
        return CONTROL in self.moments

    def plan(self, learning_rate: float, batch_size: int, epochs: int, steps: int, seed: int) -> TrainPlan:
        """Return LocalUpdate as data.

        Args:
            learning_rate: Learning rate of the client optimizer.
            batch_size: Examples in a batch.
            epochs: Passes over the local data.
            steps: Greatest number of training steps; 0 for no limit.
            seed: Seed of the order of the examples.
        """
        return TrainPlan(
            client_optimizer=self.client_optimizer,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            moments=self.moments,
            seed=seed,
        )

    def travelling(self, schema: Schema) -> Schema:
        """Return the schema of the tensors that travel each round: the public model and the moments that clients share."""
        return schema.with_moments(self.moments)

    def optimizer_schema(self, schema: Schema) -> Schema:
        """Return the schema of `ServerState.server`."""
        return Schema(())

    def init(self, tensors: Tensors, schema: Schema) -> ServerState:
        """Return the state before the first round, from the initial public model; all moments are zero."""
        schema.check(tensors)
        shared = zeros(self.travelling(schema)) | dict(tensors)
        return ServerState(0, shared, zeros(self.optimizer_schema(schema)))

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """Return the state after a round.

        Args:
            state: The state before the round, which is not changed.
            mean: The weighted mean of the round's updates.
            schema: Schema of the public model.
        """
        self.travelling(schema).check(mean)
        return replace(state, round=state.round + 1, tensors=dict(mean))


@dataclass(frozen=True)
class FedAvg(Strategy):
    """Clients run SGD, the server takes the mean."""

    name = "fedavg"
    description = "clients SGD, server mean (McMahan et al. 2017)"


@dataclass(frozen=True)
class FedAvgAdam(Strategy):
    """Clients run Adam from shared moments, the server takes the mean of the model, both moments and the step count.

    Three times the bytes of FedAvg, far fewer rounds (paper, section 3.3).
    """

    name = "fedavg-adam"
    description = "clients Adam with shared moments, server mean of model and moments (Mills et al. 2021)"
    client_optimizer = "adam"
    moments = MOMENTS


def apply_strategy(strategy: Strategy, state: ServerState, mean: dict[str, Array], schema: Schema) -> ServerState:
    """Return the state after a round, by the strategy's `finish`.

    Args:
        strategy: The strategy.
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
        strategy: The strategy.
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


def refusal_of_rule(rule: AggregateRule, strategy: Strategy) -> str | None:
    """Return why a rule cannot aggregate the updates of a strategy, with the remedy; None if it can."""
    if rule.name == "trimmed" and strategy.moments:
        return (
            f"trimmed leaves out values one by one, so the first and second moments that {strategy.name} sends would no longer "
            "fit each other; use centred or bucketed, or strategy fedavg or fedadam"
        )
    if CONTROL in strategy.moments and rule.name != "mean":
        return f"{rule.name} would part c of {strategy.name} from the mean of the devices' control variates; use mean"
    return None


def zeros(schema: Schema) -> dict[str, Array]:
    """Return zeros for each tensor of `schema`."""
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in schema.specs}
