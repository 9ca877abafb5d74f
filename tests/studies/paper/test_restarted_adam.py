"""FedAvg-Adam whose count of steps restarts in each round."""

from __future__ import annotations

import numpy as np

from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.coordinator.strategies.fedavg_adam import FedAvgAdam
from fedpatch.shared.tensors.schema import Schema, TensorSpec
from studies.paper.experiments import select_cells, study_of
from studies.paper.restarted_adam import RestartedAdam

SCHEMA = Schema((TensorSpec("fc.bias", (2,), "float32", "weight"),))


def test_round_with_restarted_adam_ends_as_with_fedavg_adam_but_with_a_count_of_zero():
    states = []
    for strategy in (FedAvgAdam(), RestartedAdam()):
        state = strategy.init({"fc.bias": np.zeros(2, np.float32)}, SCHEMA)
        mean = {name: np.full_like(values, 8) for name, values in state.tensors.items()}
        states.append(strategy.finish(state, mean, SCHEMA))
    plain, restarted = states
    assert restarted.round == plain.round
    for name, values in plain.tensors.items():
        np.testing.assert_array_equal(restarted.tensors[name], 0 * values if name.endswith(":step") else values)
    assert any(name.endswith(":step") for name in plain.tensors)


def test_restarted_cell_is_the_cell_of_table_2_with_restarted_adam_and_a_rate():
    (cell,) = select_cells("restarted-even", "mnist/fedavg-adam/all/W400/C0.5/rate0.01")
    study = study_of(cell, 3)
    assert isinstance(find_strategy(study.strategy), RestartedAdam)
    assert (study.data.partition(":")[0], study.learning_rate, study.seed) == ("even", 0.01, 3)
    assert (cell.paper, study.rounds) == (19, 38)
