"""A strategy: the training of the devices as data, and the server's step as pure functions.

A strategy is the three columns of the paper's Table 1. Its device side, LocalUpdate, is data, a TrainPlan. Its server side is
two pure functions, `init` and `finish`, around the weighted mean of the round's updates
(coordinator.aggregation.weighted_mean). coordinator.strategies has a file for each strategy, coordinator.find_strategy finds a
strategy by its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedpatch.coordinator.aggregation.limit_syntax import AggregateRule
from fedpatch.coordinator.aggregation.server_state import ServerState, zeros
from fedpatch.shared.tensors.arrays import Schema, Tensors
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import CONTROL


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


def refusal_of_rule(rule: AggregateRule, strategy: Strategy) -> str | None:
    """Return why a rule cannot aggregate the updates of a strategy, with the remedy; None if it can."""
    if rule.name == "trimmed" and strategy.moments:
        return (
            f"trimmed leaves out values one by one, so the first and second moments that {strategy.name} sends would no longer "
            "fit each other; use centred, or strategy fedavg or fedadam"
        )
    if CONTROL in strategy.moments and rule.name != "mean":
        return f"{rule.name} would part c of {strategy.name} from the mean of the devices' control variates; use mean"
    return None
