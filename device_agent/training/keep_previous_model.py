"""The previous personal model stays if the model of a round is worse than it by more than the owner's `keep_margin`.

Both are measured on the present validation data, and by onnxruntime, since the data may have grown; without validation data on
test data: no model is replaced by one that nothing tested.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch

from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.onnx.runtime import OnnxModel
from fedpatch.shared.tasks.model_metadata import FEDERATED, METADATA_FILE, MODEL_FILE, SOURCES, ModelMetadata, from_json

log = logging.getLogger("fedpatch.models")
WORSE = "is worse than"
_SAME = 1e-6


@dataclass(frozen=True)
class PreviousModel:
    """The previous model, measured on the present data, and the best of it and of those before it on the same data."""

    measured: float
    best: float


class PreviousModelComparison:
    """Compares the model of a round with the previous one.

    `keep_margin` is the most by which a model may be worse than the best one on the same data, in the unit of the metric.
    """

    def __init__(self, trainer: LocalTrainer, store: ModelStore, keep_margin: float) -> None:
        self._trainer = trainer
        self._store = store
        self._keep_margin = keep_margin

    def reason_to_keep(self, metadata: ModelMetadata, previous: PreviousModel | None) -> str:
        """Return the reason for which the previous model stays, or "".

        The margin counts from the best model on the present data: otherwise each model might lose one margin to the one before.
        """
        if previous is None:
            return ""
        found, where = self._figure(metadata), f"on {metadata.validation_examples} validation examples"
        if self._trainer.validation_data is None:
            where = f"on {metadata.test_examples} test examples, without validation data"
        where += "" if metadata.source == FEDERATED else f"; it is {SOURCES[metadata.source]}"
        if found is None:
            return (
                f"{metadata.metric} of round {metadata.round} is no number {where}, the present model's is "
                f"{previous.measured:.4g}"
            )
        loss = (previous.best - found) * (1 if metadata.metric_goal == "max" else -1)
        if loss <= self._keep_margin:
            return ""
        whose = "the present model's" if previous.best == previous.measured else "an earlier model's"
        figures = f"{metadata.metric} {found:.4g} of round {metadata.round} {WORSE} {whose} {previous.best:.4g}"
        return f"{figures} by more than the margin of {self._keep_margin:g} ({where})"

    def measure_previous(self) -> PreviousModel | None:
        """Return the previous model, measured on validation data, or else on test data; None if it cannot be compared.

        A model that was made without validation data may have been trained on the examples that are held out now, and look
        too good.
        """
        path = self._store.current(self._trainer.task.name)
        if path is None:
            return None
        validation = self._trainer.validation_data
        file, described = path / MODEL_FILE, path / METADATA_FILE
        try:
            metadata = from_json(described.read_bytes(), str(described))
            if validation is not None and not metadata.validation_examples:
                return None
            previous = OnnxModel(file.read_bytes(), str(file))
            measured = self._measured(previous, *(self._trainer.test_data if validation is None else validation))
            if measured is None:
                return None
            best = self.best(metadata, metadata.best) if self._is_of_same_data(metadata, measured) else None
            return PreviousModel(measured, measured if best is None else best)
        except (OSError, FedpatchError) as error:
            why = str(error)
        except Exception as error:  # an error of the user's metric: else no model could ever replace the present one
            log.debug("personal model", exc_info=error)
            why = f"{type(error).__name__}: {error}"
        log.warning("personal model: the present one cannot be used, and is replaced: %s", why)
        return None

    def best(self, metadata: ModelMetadata, best: float | None) -> float | None:
        """Return the better one of a model's figure and the best until now, which may be None."""
        figures = [one for one in (self._figure(metadata), best) if one is not None]
        return max(figures, key=lambda one: one if metadata.metric_goal == "max" else -one, default=None)

    def on_validation(self, model: OnnxModel) -> float | None:
        """Return the metric on validation data; None without such data, or if it is not a finite number."""
        data = self._trainer.validation_data
        return None if data is None else self._measured(model, *data)

    def _figure(self, metadata: ModelMetadata) -> float | None:
        """Return the figure by which a model is compared with the previous one."""
        return metadata.user_accuracy if self._trainer.validation_data is None else metadata.validation_accuracy

    def _measured(self, model: OnnxModel, inputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        """Return the metric of a model; None if it is not a finite number."""
        measured = float(self._trainer.task.metric(torch.from_numpy(model.run(inputs.numpy())), targets))
        return measured if math.isfinite(measured) else None

    def _is_of_same_data(self, metadata: ModelMetadata, measured: float) -> bool:
        """Return whether the present data are those of the metadata, by their numbers and the model's figure on them."""
        validation, then = self._trainer.validation_data, self._figure(metadata)
        counts = (0 if validation is None else len(validation[0]), len(self._trainer.test_data[0]))
        if counts != (metadata.validation_examples, metadata.test_examples) or then is None:
            return False
        return math.isclose(measured, then, rel_tol=_SAME)
