"""The algorithms that the paper compares with MTFL (section 4.4, Fig. 5), as their authors define them.

Per-FedAvg (Fallah et al., "Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning
approach", NeurIPS 2020), first-order variant; pFedMe (T. Dinh et al., "Personalized federated learning with Moreau
envelopes", NeurIPS 2020), Algorithm 1. In both everything is federated; batch norm's statistics too are tracked and
averaged as usual. A client makes as many local steps in a round as in FedAvg. Independent learning needs no steps of its
own: it is SGD on a completely private model.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.simulator.kernels.flat_model import WorkingModel
from fedpatch.simulator.kernels.layers import Layer
from fedpatch.simulator.kernels.losses import Loss
from fedpatch.simulator.kernels.model_layers import layers_of
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.optimizer_steps import AdamSteps, Batches, BatchesFrom, ClientSteps, SgdSteps
from fedpatch.simulator.spec.study import Study

MU = 0.001
"""pFedMe's weight decay of theta: not in Algorithm 1, but in its authors' published optimizer, with this value."""

# A client of a baseline keeps these values and its patch between rounds; the model's names have no colon.
TAKEN = "client:batches"
THETA = "client:theta"


class _Baseline(ClientSteps):
    """Steps of a client whose number of taken batches is kept, since its measurement needs the position."""

    needs_grads = True

    def __init__(self, context: LearnerContext, model: WorkingModel) -> None:
        super().__init__(context, model)
        self._taken = context.patches.values[TAKEN]
        self._start = torch.zeros_like(model.public)

    def finish(self, client: int, steps: int) -> None:
        """Count the batches that the client has taken."""
        self._taken[client] += steps * self.batches_per_step

    def _trained(self, vector: Tensor) -> Tensor:
        """Return the trained part of a vector like the model's."""
        return vector[self._model.layout.trained_from : self._model.length]

    def _learn(
        self, batch: tuple[Tensor, Tensor], loss: Loss, learning_rate: float | None, *, counts: bool = True
    ) -> None:
        """Make a step of SGD; without a learning rate, only leave the gradient in the model."""
        model, (x, y) = self._model, batch
        model.backward(loss.gradient(model.outputs(x), y, model.grad, counts=counts), learning_rate)


class PerFedAvgSteps(_Baseline):
    """Per-FedAvg, first order (FO): w <- w - beta * grad f(w - alpha * grad f(w; batch 1); batch 2).

    alpha is the study's adaptation rate, beta its learning rate. A local step takes two batches, so a round of K local
    steps takes the client's next 2K batches; each of these 2K forward passes updates the running statistics. The loss of a
    step is the loss of batch 2, after the adaptation.
    """

    batches_per_step = 2

    def __init__(self, context: LearnerContext, model: WorkingModel) -> None:
        super().__init__(context, model)
        self._alpha = _given(context.study, "adaptation_rate")

    def run(self, batches: Batches, loss: Loss) -> None:
        """See ClientSteps."""
        values, start = self._trained(self._model.public), self._trained(self._start)
        grads, beta = self._trained(self._model.public_grad), self._plan.learning_rate
        for batch in batches:
            start.copy_(values)
            self._learn(batch, loss, self._alpha, counts=False)
            self._learn(next(batches), loss, None)
            torch.sub(start, grads, alpha=beta, out=values)

    def personalise(self, client: int, batches: BatchesFrom, loss: Loss) -> None:
        """Adapt once, statistics included, on the batch that the client will train on next.

        The round's model and the client's position in its data stay the same: the client still trains on this batch.
        """
        for batch in batches(int(self._taken[client]), 1):
            self._learn(batch, loss, self._alpha, counts=False)


class PFedMeSteps(_Baseline):
    """pFedMe with one inner step (the paper's K = 1) and the server's mixing beta = 1, a plain weighted mean.

    A round begins with w = theta = the global model. A local step is theta <- theta - eta * (grad f(theta; batch) +
    lambda * (theta - w) + mu * theta), then w <- w - eta * lambda * (w - theta); eta is the study's learning rate, lambda
    its proximity. w is sent, with the running statistics that theta's forward passes have updated.

    A client is measured with theta, statistics included, of the last round that it took part in; before its first round,
    with the global model. So each client keeps a whole model, without the rows of the first layer that its data never
    use.
    """

    def __init__(self, context: LearnerContext, model: WorkingModel) -> None:
        super().__init__(context, model)
        self._theta = context.patches.values[THETA]
        self._lambda = _given(context.study, "proximity")

    def run(self, batches: Batches, loss: Loss) -> None:
        """See ClientSteps; theta is in the model, w in `_start`."""
        theta, w = self._trained(self._model.public), self._trained(self._start)
        grads = self._trained(self._model.public_grad)
        w.copy_(theta)
        for batch in batches:
            self._learn(batch, loss, None)
            self._move(theta, w, grads)

    def finish(self, client: int, steps: int) -> None:
        """Keep theta, and send w."""
        super().finish(client, steps)
        self._theta[client, : self._model.length] = self._model.public[: self._model.length]
        self._trained(self._model.public).copy_(self._trained(self._start))

    def personalise(self, client: int, batches: BatchesFrom, loss: Loss) -> None:
        """Load theta of the client's last round."""
        if self._taken[client]:
            self._model.public[: self._model.length] = self._theta[client, : self._model.length]

    def idle(self, vectors: list[Tensor], step: float, count: int) -> list[Tensor]:
        """Without a gradient, theta still decays and w follows."""
        (w,) = [one.clone() for one in vectors]
        theta = w.clone()
        for _ in range(count):
            self._move(theta, w, torch.zeros_like(w))
        return [w]

    def _move(self, theta: Tensor, w: Tensor, grads: Tensor) -> None:
        eta = self._plan.learning_rate
        grads.add_(theta - w, alpha=self._lambda).add_(theta, alpha=MU)
        theta.sub_(grads, alpha=eta)
        w.lerp_(theta, eta * self._lambda)


_KINDS: dict[str, type[ClientSteps]] = {"per-fedavg": PerFedAvgSteps, "pfedme": PFedMeSteps}


def kind_of_steps(strategy: str, plan: TrainPlan) -> type[ClientSteps]:
    """Return the steps of a client: those of a baseline, else those of the plan's client optimizer."""
    return _KINDS.get(strategy, AdamSteps if plan.client_optimizer == "adam" else SgdSteps)


def kept_between_rounds(strategy: str, schema: Schema) -> Schema:
    """Return the schema of the values that a client of a baseline keeps besides its patch; `schema` is the model's."""
    if strategy not in _KINDS:
        return Schema(())
    specs = [TensorSpec(TAKEN, (), "int64", "moment")]
    if strategy == "pfedme":
        floats = [spec for spec in schema.specs if spec.dtype.startswith("float")]
        size = sum(prod(spec.shape) for spec in floats)
        specs.append(TensorSpec(THETA, (size,), floats[0].dtype, "moment"))
    return Schema(tuple(specs))


def check_baseline(study: Study, model: nn.Module) -> None:
    """Raise UsageError if the study's strategy is a baseline that cannot train `model`, or the study has private values."""
    if study.strategy not in _KINDS:
        return
    if study.private != "none":
        raise UsageError(f"{study.strategy} keeps no patch private, so {study.private!r} cannot be; use none")
    if layers_of(model) is None:
        known = ", ".join(sorted(kind.__name__ for kind in Layer.__subclasses__()))
        raise UsageError(
            f"{study.strategy} needs a model that is a plain torch.nn.Sequential of {known}, with one float type; that of "
            f"task {study.task!r} is not"
        )


def _given(study: Study, term: str) -> float:
    value: float | None = getattr(study, term)
    if value is None:
        raise UsageError(f"a study of {study.strategy} needs its {term.replace('_', ' ')}")
    return value
