"""Simulations in which models and updates travel as they do in a run: the same rounding and bytes."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.quantised_step import quantised_step, step_seed
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.device_agent.training.batches import stream_seed, update_seed
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.arrays import Array, Tensors
from fedpatch.shared.tensors.packing import Packed, pack, unpack
from fedpatch.shared.wire.messages import ENCODINGS, is_delta
from fedpatch.simulator.clients.transport import Downlink, report_of
from fedpatch.simulator.experiment import checkpoint as states
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.learners.cohort_training import encoded
from fedpatch.simulator.learners.reference_learner import OneByOneLearner
from fedpatch.simulator.spec.study import Outcome, Study, client_id
from tests.simulator.studies import UNEVEN, client_data, simulation_of, study_of

CODED = [encoding for encoding in ENCODINGS if encoding != "fp32"]
ROUNDS = 3


class ByHand:
    """Devices that pack and a coordinator that unpacks, with function calls instead of a network."""

    def __init__(self, study: Study) -> None:
        self.study, self.encoding = study, study.encoding
        self.rule = find_strategy(study.strategy, study.server_learning_rate)
        self.public = schema_of(UNEVEN.build_model())
        self.schema = self.rule.travelling(self.public)
        self.state = self.rule.init(initial_tensors(UNEVEN, study.seed), self.public)
        self.taken = dict.fromkeys(range(study.clients), 0)

    def play(self, clients: list[int]) -> int:
        """Run one round of `clients`; return the bytes of their updates."""
        mean, sizes, model, before = WeightedMean(self.schema), 0, self.state.tensors, self.state
        if not is_delta(self.encoding):
            model = self.unpacked(pack(model, self.schema, {}, self.encoding), None)
        for client in clients:
            packed, num_examples = self.update(client, model)
            sizes += len(packed.blob)
            mean.add(self.unpacked(packed, model), num_examples)
        self.state = self.rule.finish(before, mean.result(), self.public)
        if is_delta(self.encoding):
            seed = step_seed(self.study.seed, self.state.round)
            self.state, _ = quantised_step(before, self.state, self.schema, self.encoding, seed)
        return sizes

    def update(self, client: int, model: Tensors) -> tuple[Packed, int]:
        """The update of one device."""
        study, first = self.study, self.taken[client]
        result = LocalTrainer(UNEVEN, client_data(client, study.seed)).run(
            model,
            self.rule.plan(study.learning_rate, study.batch_size, study.epochs, study.steps, study.seed),
            first_batch=first,
            stream_seed=stream_seed(study.seed, client_id(client)),
            on_step=lambda done, total: None,
            cancelled=lambda: False,
        )
        assert result is not None
        seed = update_seed(study.seed, client_id(client), first)
        meta = asdict(report_of(client, result.num_examples, result.steps, result.train_loss))
        packed = pack(result.tensors, self.schema, meta, self.encoding, base=model, seed=seed)
        self.taken[client] += result.steps
        return packed, result.num_examples

    def unpacked(self, packed: Packed, base: Tensors | None) -> dict[str, Array]:
        return unpack(packed.blob, encoding=packed.encoding, raw_bytes=packed.raw_bytes, schema=self.schema, base=base)[
            1
        ]


@pytest.mark.matrix
@pytest.mark.parametrize("encoding", CODED)
@pytest.mark.parametrize("strategy", ["fedavg", "fedadam", "fedavg-adam"])
def test_a_client_sends_what_a_device_would(strategy, encoding):
    study = study_of(strategy, rounds=ROUNDS, encoding=encoding)
    simulation = simulation_of(study, learner=lambda task, context: encoded(OneByOneLearner(task, context), context))
    by_hand = ByHand(study)
    simulation.step()
    for _ in range(ROUNDS):
        sizes, point = by_hand.play(simulation._selected()), simulation.step()
        assert point.bytes_up == pytest.approx(sizes, rel=0.02)  # the last bits of a sum compress differently
        for name, values in by_hand.state.tensors.items():
            np.testing.assert_allclose(simulation.server.tensors[name], values, rtol=1e-6, atol=1e-6)
        assert set(simulation.server.server) == set(by_hand.state.server)


def test_exact_is_the_default_and_costs_nothing():
    exact, packed = (
        study_of("fedavg-adam", "affine", rounds=ROUNDS),
        study_of("fedavg-adam", "affine", rounds=ROUNDS, encoding="fp32+zstd"),
    )
    assert exact.encoding == "fp32" and "encoding" not in exact.to_dict()
    simulation = simulation_of(exact)
    assert simulation._wire.uplink is None
    one, other = simulate(exact), simulate(packed)
    assert [point.user_accuracy for point in one.points] == [point.user_accuracy for point in other.points]
    schema = simulation.strategy.travelling(simulation.public)
    assert schema.nbytes < (one.bytes_up_per_update or 0) < schema.nbytes + 3000
    assert schema.nbytes < (one.bytes_down_per_download or 0) < schema.nbytes + 3000


def test_state_without_the_models_that_clients_hold_is_refused(tmp_path):
    study = study_of("fedavg", rounds=2, encoding="delta-int8")
    simulate(study, saved=tmp_path)
    before = states.load(tmp_path, study)
    assert before is not None
    with pytest.raises(UsageError, match="delete it to begin anew"):
        simulation_of(study).restore(replace(before, versions={}))


def test_absent_client_downloads_missed_deltas_or_the_whole_model():
    simulation = simulation_of(study_of(encoding="delta-int8"))
    schema = simulation.strategy.travelling(simulation.public)
    state, down = simulation.server, Downlink("delta-int8", schema, 3, 0)
    down.read(state)
    whole = down.take([0, 1])
    assert down.take([0]) == 0
    sizes = []
    for _ in range(2):
        moved = {name: (values * 1.01).astype(values.dtype) for name, values in state.tensors.items()}
        state = down.follow(state, replace(state, round=state.round + 1, tensors=moved))
        down.read(state)
        sizes.append(down.take([0]))
    assert 0 < sizes[0] < whole / 2
    down.restore(down.state())
    assert down.take([1]) == min(down.take([2]), sum(sizes))


def test_a_resumed_simulation_counts_as_many_bytes_of_a_whole_model_as_before():
    """The number of the round is in the blob, and takes more bytes from round 127 on."""
    simulation = simulation_of(study_of())
    schema = simulation.strategy.travelling(simulation.public)
    alone, resumed = (Downlink("fp32", schema, 1, 0) for _ in range(2))
    alone.read(simulation.server)
    resumed.restore(alone.state())
    late = replace(simulation.server, round=140)
    alone.read(late)
    resumed.read(late)
    assert resumed.take([0]) == alone.take([0])


@pytest.mark.medium
def test_bytes_to_the_target_are_all_of_the_way():
    study = study_of("fedavg-adam", "affine", participation=1.0, rounds=30, target_ua=0.6, encoding="delta-int8")
    outcome = simulate(study)
    assert outcome.rounds_to_target is not None
    total = sum((point.bytes_up or 0) + (point.bytes_down or 0) for point in outcome.points)
    plain = outcome.to_dict()
    assert plain["bytes_to_target"] == outcome.bytes_to_target == total
    assert plain["encoding"] == "delta-int8"
    rounds = len(outcome.points) - 1
    assert outcome.bytes_up_per_update == pytest.approx(
        sum(point.bytes_up or 0 for point in outcome.points) / rounds / study.clients
    )
    assert Outcome.from_dict(plain) == outcome
    assert simulate(replace(study, rounds=1, target_ua=1.0)).bytes_to_target is None
    assert (
        replace(outcome, points=tuple(replace(one, bytes_down=None) for one in outcome.points)).bytes_to_target is None
    )


def test_independent_clients_send_nothing():
    outcome = simulate(study_of("independent", rounds=2, encoding="delta-int8"))
    assert [(point.bytes_up, point.bytes_down) for point in outcome.points] == [(None, 0), (0, 0), (0, 0)]


def test_a_misspelt_encoding_is_a_usage_error():
    with pytest.raises(UsageError, match="did you mean 'delta-int8'"):
        make_study(task=UNEVEN, task_ref="x", clients=2, strategy="fedavg", encoding="delta-in8")


def test_a_gpu_exact_only():
    with pytest.raises(UsageError, match="--encoding delta-int8 is computed on the CPU only"):
        simulate(study_of(encoding="delta-int8"), device="cuda")
