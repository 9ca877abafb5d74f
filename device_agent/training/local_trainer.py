"""LocalUpdate of Algorithm 1 (paper, lines 10-12 and Table 1): a device trains its own model on its own data.

The model is a mapping of named tensors, with private ones; the caller separates public and private tensors. The moments of
the optimizer, which FedAvg-Adam shares, are tensors too. User accuracy is measured twice on the device's test data: after
download and patching, before training (the number in the paper), and again after training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from fedpatch.device_agent.training.batches import attempt_seed, batch_indices
from fedpatch.device_agent.training.evaluation import Cancelled, user_accuracy
from fedpatch.device_agent.training.failure_cause import attributed
from fedpatch.shared.errors import DataError, UpdateRefused, UsageError, unknown_name
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.input_statistics import absent_classes, statistics_of
from fedpatch.shared.tasks.losses import mean_loss
from fedpatch.shared.tasks.model_metadata import InputStatistics
from fedpatch.shared.tasks.optimizers import Adam, ClientOptimizer, ControlVariates, Pull, Sgd
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import load_tensors, schema_of, to_tensors
from fedpatch.shared.tensors.arrays import MOMENTS, TRAINABLE, Array, Schema, Tensors, moment_name, require_finite
from fedpatch.shared.tensors.common_update_checks import untrained
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import COPIES, PARTS, PFEDME
from fedpatch.shared.wire.reason_codes import FailCause

CLIENT_OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class LocalResult:
    """The result of a training.

    User accuracies are None if the device does not count (`DeviceData.counts_in_ua`). `tensors` is the whole model, with
    private tensors and the moments of the plan. `train_loss` is the mean over the steps, `train_s` their time in seconds.
    `control` is the device's own control variate after a plan that has them, by name of the moment.
    """

    tensors: dict[str, Array]
    num_examples: int
    steps: int
    train_loss: float
    user_accuracy_before: float | None
    user_accuracy_after: float | None
    train_s: float
    control: dict[str, Array] = field(default_factory=dict)


class LocalTrainer:
    """One task and one device's data, with one model for all rounds.

    `test_data` are the device's own test inputs and targets. `validation_data` are those for the choice of a personal
    model, None without any. Neither is used for training.
    """

    def __init__(self, task: Task, data: DeviceData) -> None:
        with torch.random.fork_rng(devices=[]):
            self.model: nn.Module = new_model(task)
        self.task = task
        self.schema: Schema = schema_of(self.model)
        self.take(data)
        self._trained = {
            name: parameter
            for name, parameter in self.model.named_parameters(remove_duplicate=False)
            if name in self.schema and self.schema.spec(name).role in TRAINABLE
        }

    def take(self, data: DeviceData) -> None:
        """Train and measure on `data` from now on; no validation part is split off."""
        self.num_examples: int = len(data.train_x)
        self._train = _tensor(data.train_x), _tensor(data.train_y)
        self.test_data = _tensor(data.test_x), _tensor(data.test_y)
        self.validation_data: tuple[Tensor, Tensor] | None = None
        if data.val_x is not None and data.val_y is not None and len(data.val_x):
            self.validation_data = _tensor(data.val_x), _tensor(data.val_y)
        self.counts_in_ua: bool = data.counts_in_ua
        self._input_statistics: InputStatistics | None = None

    @property
    def input_statistics(self) -> InputStatistics:
        """Statistics of the current training inputs and classes; they are private to the device, as the inputs are."""
        if self._input_statistics is None:
            names = self.task.class_names
            self._input_statistics = replace(
                statistics_of(self._train[0].numpy()),
                untrained=absent_classes(self._train[1].numpy(), len(names)),
                untested=absent_classes(self.test_data[1].numpy(), len(names)),
            )
        return self._input_statistics

    def train(  # noqa: PLR0913  (each by name)
        self,
        tensors: Tensors,
        plan: TrainPlan,
        *,
        copy: Tensors,
        first_batch: int,
        stream_seed: int,
        on_step: Callable[[int, int], None],
        cancelled: Callable[[], bool],
        private: Collection[str] = (),
        control: Tensors | None = None,
        attempt: bytes = b"",
    ) -> tuple[LocalResult, LocalResult] | None:
        """Train a model, and by a plan with `personal` or `finish` the device's own copy of it.

        Args:
            tensors: The model by name, as for `run`.
            copy: With `personal` the copy after the device's last round; empty: it begins with `tensors`.
            first_batch: As for `run`.
            stream_seed: As for `run`.
            on_step: As for `run`.
            cancelled: As for `run`.
            private: Names of the values that do not travel.
            control: As for `run`.
            attempt: As for `run`.

        Returns:
            The result of the model, and that of the personal model, which the trainer holds then: the copy, or without one the
            model itself. None after a cancel.

        Raises:
            FedpatchError: As `run` does.
        """
        run = partial(
            self.run,
            first_batch=first_batch,
            stream_seed=stream_seed,
            cancelled=cancelled,
            private=private,
            attempt=attempt,
        )
        if not plan.personal and not plan.finish:
            result = run(tensors, plan, on_step=on_step, control=control)
            return (result, result) if result else None
        if plan.personal and plan.personal.kind == PFEDME:
            strength = plan.personal.strength
            pull = self._pull(strength, tensors, private, plan.learning_rate * strength)
            return self._pfedme(partial(run, tensors, plan.plain, on_step=on_step), pull, copy or tensors, private)
        if plan.personal:
            if plan.personal.kind not in COPIES:
                raise unknown_name("personal copy", plan.personal.kind, COPIES)
            steps, pull = plan.steps_for(self.num_examples), self._pull(plan.personal.strength, tensors, private)
            train_copy = partial(run, copy or tensors, plan.plain, pull=pull)
        else:
            steps = plan.finishing.steps_for(self.num_examples)
            train_copy = partial(
                self.finish, tensors, plan, stream_seed=stream_seed, cancelled=cancelled, private=private
            )
        # The model is trained first, as without a copy, and then the copy.
        result = run(
            tensors,
            plan,
            on_step=lambda done, total: on_step(done, total + steps),
            control=control,
            measure_before=False,
        )
        if result is None:
            return None
        known = result.steps
        own = train_copy(on_step=lambda done, _: on_step(known + done, known + steps))
        if own is None:
            return None
        return result, replace(own, steps=known, train_loss=result.train_loss, train_s=result.train_s + own.train_s)

    def finish(
        self,
        tensors: Tensors,
        plan: TrainPlan,
        *,
        stream_seed: int,
        cancelled: Callable[[], bool],
        on_step: Callable[[int, int], None] = lambda done, total: None,
        private: Collection[str] = (),
    ) -> LocalResult | None:
        """Train a copy of a global model with the device's patch, by `plan.finish` (FedBABU: Oh et al. 2022, section 4.2).

        It begins with the device's first batch, so that the result depends on no earlier round.

        Args:
            tensors: The model by name, as for `run`.
            plan: The training plan, with `finish`.
            stream_seed: As for `run`.
            cancelled: As for `run`.
            on_step: As for `run`.
            private: As for `run`.

        Returns:
            The result, with the finished model's user accuracy as that before training too; None after a cancel.

        Raises:
            FedpatchError: As `run` does.
        """
        own = self.run(
            tensors,
            plan.finishing,
            first_batch=0,
            stream_seed=stream_seed,
            on_step=on_step,
            cancelled=cancelled,
            measure_before=False,
            private=private,
        )
        return own and replace(own, user_accuracy_before=own.user_accuracy_after)

    def _pfedme(
        self, run: Callable[..., LocalResult | None], pull: Pull | None, copy: Tensors, private: Collection[str]
    ) -> tuple[LocalResult, LocalResult] | None:
        """Train the copy theta with a pull to the model w, which follows theta; `copy` is theta of the last round."""
        assert pull is not None
        self.load(copy)
        before = self._user_accuracy(lambda: False)
        theta = run(pull=pull, measure_before=False)
        if theta is None:
            return None
        w = {name: pull.anchors[value].numpy() for name, value in self._trained.items() if name not in private}
        return replace(theta, tensors=theta.tensors | w), replace(theta, user_accuracy_before=before)

    def run(  # noqa: PLR0913  (each by name)
        self,
        tensors: Tensors,
        plan: TrainPlan,
        *,
        first_batch: int,
        stream_seed: int,
        on_step: Callable[[int, int], None],
        cancelled: Callable[[], bool],
        measure_before: bool = True,
        private: Collection[str] = (),
        pull: Pull | None = None,
        control: Tensors | None = None,
        attempt: bytes = b"",
    ) -> LocalResult | None:
        """Train a model by a plan. Equal arguments give equal results.

        Args:
            tensors: The model by name, with moments if there are any.
            first_batch: Number of batches that the device has taken before.
            stream_seed: Seed of the device's stream of batches.
            on_step: Called after each step with the steps done and their total.
            cancelled: Called before each batch; True cancels the training.
            measure_before: Whether to measure user accuracy before training.
            private: Names of the values that do not travel.
            pull: A pull of the values; None: that of `plan.prox` to `tensors`.
            control: By a plan with control variates the device's own, by name of the moment; a missing one is zero.
            attempt: Secret of the attempt at a masked round; empty without masks.

        Returns:
            The result; None after a cancel.

        Raises:
            UsageError: The plan cannot be followed.
            SchemaMismatch: The tensors are those of another model.
            DataError: The data cannot be trained on.
            UpdateRefused: "not_finite": the loss or a value diverged.
        """
        total = plan.steps_for(self.num_examples)
        if total < 1:
            raise UsageError(
                "the plan has neither steps nor epochs, so there is nothing to train; give it at least one"
            )
        self.load(tensors)
        controls = ControlVariates(self._trained, tensors, control or {}, private) if plan.has_controls else None
        optimizer = controls.optimizer(plan.learning_rate) if controls else self._optimizer(plan, tensors)
        pull = pull or self._pull(plan.prox or 0.0, tensors, private)
        batches = batch_indices(self.num_examples, plan.batch_size, first_batch, total, stream_seed, attempt)
        layer_seed = attempt_seed(stream_seed, attempt) + first_batch
        losses: list[float] = []
        try:
            before = self._user_accuracy(cancelled) if measure_before else None
            started = time.perf_counter()
            with torch.random.fork_rng(devices=[]):  # a repeated round repeats dropout and similar layers
                torch.default_generator.manual_seed(layer_seed % 2**63)
                self.model.train()
                for indices in self._in_phases(batches, plan, private):
                    if cancelled():
                        return None
                    with attributed(FailCause.MODEL):
                        losses.append(self._step(optimizer, indices, pull))
                    if not math.isfinite(losses[-1]):
                        raise self._diverged(losses[-1], f"step {len(losses)} of {total}", plan)
                    on_step(len(losses), total)
            train_s = time.perf_counter() - started
            sent, kept = controls.after(total, plan.learning_rate) if controls else (self._moments(optimizer, plan), {})
            result = to_tensors(self.model) | sent
            require_finite(result, kept=untrained(tensors, self.schema))
            after = self._user_accuracy(cancelled)
        except Cancelled:
            return None
        finally:
            self._let_learn("all", ())
        return LocalResult(result, self.num_examples, total, mean_loss(losses), before, after, train_s, kept)

    def measure(self, tensors: Tensors, cancelled: Callable[[], bool]) -> float | None:
        """Return the user accuracy of a model without training; None if this device does not count.

        Args:
            tensors: The model by name.
            cancelled: Called before each batch; True raises Cancelled.
        """
        self.load(tensors)
        return self._user_accuracy(cancelled)

    def on_validation(self) -> float | None:
        """Return the metric of the present model on validation data; None without such data, or if it is no number."""
        if self.validation_data is None:
            return None
        try:
            return user_accuracy(self.model, self.task, *self.validation_data)
        except DataError:
            return None

    def load(self, tensors: Tensors) -> None:
        """Copy the values of `tensors`, except moments, into the model; SchemaMismatch for another model's."""
        load_tensors(self.model, {name: array for name, array in tensors.items() if ":" not in name})

    def _in_phases(self, batches: Iterator[Array], plan: TrainPlan, private: Collection[str]) -> Iterator[Array]:
        """Return the batches; with each, only the values of its phase learn."""
        for phase in plan.parts:
            if not self._let_learn(phase.train, private):
                raise UsageError(f"the phase {phase.train} of the plan has nothing to train; nothing was trained")
            yield from islice(batches, phase.steps_for(self.num_examples, plan.batch_size))

    def _let_learn(self, part: str, private: Collection[str]) -> bool:
        """Let only one of PARTS learn; return whether it has values."""
        if part not in PARTS:
            raise unknown_name("phase", part, PARTS)
        for name, value in self._trained.items():
            value.requires_grad_(part == "all" or (name in private) == (part == "private"))
        return any(value.requires_grad for value in self._trained.values())

    def _pull(self, strength: float, anchor: Tensors, private: Collection[str], follow: float = 0.0) -> Pull | None:
        """Return the pull of the values that travel to those in `anchor`; None for a strength of 0."""
        if not strength:
            return None
        pulled = {value: _tensor(anchor[name]).clone() for name, value in self._trained.items() if name not in private}
        return Pull(strength, pulled, follow)

    def _step(self, optimizer: ClientOptimizer, indices: Array, pull: Pull | None) -> float:
        x, y = self._train
        chosen = torch.from_numpy(indices)
        optimizer.zero_grad()
        loss = self.task.loss(self._forward(x[chosen]), y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        if pull is not None:
            pull.add_gradients()
        optimizer.step()
        if pull is not None:
            pull.move_anchors()
        return float(loss.item())

    def _diverged(self, loss: float, where: str, plan: TrainPlan) -> UpdateRefused:
        return UpdateRefused(
            "not_finite",
            f"task {self.task.name!r}: the loss was {loss} at {where}; try a learning rate smaller than "
            f"{plan.learning_rate:g}, or look for bad values in the training data",
        )

    def _forward(self, batch: Tensor) -> Tensor:
        try:
            outputs: Tensor = self.model(batch)
        except ValueError as error:
            if len(batch) > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise DataError(
                f"task {self.task.name!r}: batch norm cannot learn from a batch of one example "
                f"(this device has {self.num_examples}); use a batch size and a device's data of at least 2"
            ) from error
        return outputs

    def _user_accuracy(self, cancelled: Callable[[], bool]) -> float | None:
        if not self.counts_in_ua:
            return None
        return user_accuracy(self.model, self.task, *self.test_data, cancelled=cancelled)

    def _optimizer(self, plan: TrainPlan, tensors: Tensors) -> ClientOptimizer:
        """Return the optimizer of the plan, which continues from the moments in `tensors`, or from zero without any."""
        unknown = [moment for moment in plan.moments if moment not in MOMENTS]
        if unknown:
            raise unknown_name("optimizer moment", unknown[0], MOMENTS)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if plan.client_optimizer == "sgd":
            if plan.moments:
                raise UsageError(
                    f"the plan asks for {', '.join(plan.moments)}, but the client optimizer sgd has no moments"
                )
            return Sgd(parameters, plan.learning_rate)
        if plan.client_optimizer != "adam":
            raise unknown_name("client optimizer", plan.client_optimizer, CLIENT_OPTIMIZERS)
        state = {parameter: self._adam_state(name, parameter, tensors) for name, parameter in self._trained.items()}
        betas = plan.beta_1, plan.beta_2
        return Adam(parameters, plan.learning_rate, betas=betas, epsilon=plan.epsilon, state=state)

    def _adam_state(self, name: str, parameter: nn.Parameter, tensors: Tensors) -> dict[str, Tensor]:
        state = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        for moment, value in state.items():
            if (known := tensors.get(moment_name(name, moment))) is not None:
                value.copy_(_tensor(known))
        return state

    def _moments(self, optimizer: ClientOptimizer, plan: TrainPlan) -> dict[str, Array]:
        if not isinstance(optimizer, Adam):
            return {}
        return {
            moment_name(name, moment): optimizer.state[parameter][moment].numpy().copy()
            for name, parameter in self._trained.items()
            for moment in plan.moments
        }


def _tensor(array: Array) -> Tensor:
    """Return a tensor that shares the memory of `array` if torch can, which needs it contiguous and writable."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
