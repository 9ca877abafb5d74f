"""The components, joined without a network, give the results of Algorithm 1 of the paper."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import Downloaded, TrainCommand
from fedpatch.device_agent.state.patch_store import PatchKey, PatchState, PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.tensors.common_update_checks import check_update
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.messages import Manifest
from tests.device_agent.toy_tasks import TOY, build_model, random_data
from tests.support.oracle import Moments, Round, run_mtfl

SEED = 7
TOLERANCE = 1e-5
CLIENTS = {"ann": 23, "bob": 40, "cat": 11, "dan": 8}
ROUNDS = [["ann", "bob"], ["bob", "cat"], ["ann", "bob", "cat"], ["dan", "ann"]]  # dan joins late
RATES = {"fedavg": 0.2, "fedadam": 0.2, "fedavg-adam": 0.01}
POLICIES = ("none", "stats", "affine", "all", "names:fc2.*,bn.running_mean")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Fleet:
    """A coordinator and its devices, joined by function calls and files."""

    folder: Path
    strategy: Strategy
    private: str
    batch_size: int = 5
    epochs: int = 1
    stores: dict[str, PatchStore] = field(default_factory=dict)
    devices: dict[str, LocalUpdate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy = parse_policy(self.private)
        for client, count in CLIENTS.items():
            trainer = LocalTrainer(TOY, random_data(client, count))
            self.schema = trainer.schema
            self.stores[client] = PatchStore(self.folder / client)
            self.devices[client] = LocalUpdate(trainer, self.stores[client], client, private=self.private)
        self.public = self.policy.public(self.schema)
        self.travelling = self.strategy.travelling(self.public)
        initial = initial_tensors(TOY, SEED)
        self.state: ServerState = self.strategy.init({name: initial[name] for name in self.public.names}, self.public)

    def play(self, clients: list[str]) -> dict[str, float | None]:
        """Run one round; return the user accuracies before training."""
        mean, accuracy = WeightedMean(self.travelling), {}
        model = self._published()
        for client in clients:
            done = self.devices[client].run(self._command(model), lambda done, total: None, lambda: False)
            assert done is not None
            manifest, report = done
            blob = (self.folder / "update").read_bytes()
            _, update = unpack(blob, encoding=manifest.encoding, raw_bytes=manifest.raw_bytes, schema=self.travelling)
            check_update(update, self.travelling, self.policy.private_names(self.schema), report.num_examples)
            mean.add(update, report.num_examples)
            accuracy[client] = report.user_accuracy_before
        self.state = self.strategy.finish(self.state, mean.result(), self.public)
        return accuracy

    def patch(self, client: str) -> PatchState:
        """Return the patch that the client keeps."""
        return self.stores[client].load(PatchKey("toy", self.schema.digest, str(self.policy)), "another run", 0)

    def _published(self) -> Manifest:
        packed = pack(self.state.tensors, self.travelling, {}, "fp32+zstd")
        (self.folder / "model").write_bytes(packed.blob)
        digest, size = hashlib.sha256(packed.blob).hexdigest(), len(packed.blob)
        return Manifest(digest, size, 4096, -(-size // 4096), packed.encoding, packed.raw_bytes, self.travelling.digest)

    def _command(self, model: Manifest) -> TrainCommand:
        return TrainCommand(
            key=JobKey("oracle", 1, self.state.round + 1, "toy"),
            plan=self.strategy.plan(RATES[self.strategy.name], self.batch_size, self.epochs, 0, SEED),
            private=self.private,
            schema=self.schema.digest,
            blob=Downloaded(str(self.folder / "model")),
            model=model,
            encoding="fp32",
            base=model.digest,
            update_path=str(self.folder / "update"),
            download_s=0.0,
            chunk_bytes=1024,
        )


def _oracle(strategy: str, private: str, batch_size: int = 5, epochs: int = 1) -> list[Round]:
    clients = {}
    for client, count in CLIENTS.items():
        data = random_data(client, count)
        clients[client] = (data.train_x, data.train_y, data.test_x, data.test_y)
    rate = RATES[strategy]
    return run_mtfl(build_model, clients, ROUNDS, strategy, private, rate, 0.01, batch_size, epochs, SEED)


def _flat(moments: Moments) -> dict[str, Array]:
    return {f"{name}:{kind}": value for name, kinds in moments.items() for kind, value in kinds.items()}


def _assert_close(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)


def _assert_same_round(fleet: Fleet, expected: Round, seen: set[str]) -> None:
    _assert_close(fleet.state.tensors, {**expected.omega, **_flat(expected.moments)})
    _assert_close(fleet.state.server, _flat(expected.server_moments))
    for client in seen:
        values = {**expected.patches[client], **_flat(expected.patch_moments[client])}
        _assert_close(dict(fleet.patch(client).values), values)


@pytest.mark.matrix
@pytest.mark.parametrize("private", POLICIES)
@pytest.mark.parametrize("strategy", RATES)
def test_rounds_are_those_of_algorithm_1(tmp_path, strategy, private):
    """Global model, moments, patches and user accuracies agree after every round, with partial and late participants."""
    fleet, seen = Fleet(tmp_path, find_strategy(strategy), private), set()
    for clients, expected in zip(ROUNDS, _oracle(strategy, private), strict=True):
        accuracy = fleet.play(clients)
        seen.update(clients)
        assert accuracy == pytest.approx(expected.user_accuracy)
        _assert_same_round(fleet, expected, seen)


def test_several_epochs_of_batches_larger_than_some_devices_data(tmp_path):
    """Batch order agrees if a batch is all the data of one device and crosses passes on another."""
    fleet = Fleet(tmp_path, find_strategy("fedavg"), "affine", batch_size=9, epochs=3)
    for clients, expected in zip(ROUNDS, _oracle("fedavg", "affine", batch_size=9, epochs=3), strict=True):
        fleet.play(clients)
        _assert_close(fleet.state.tensors, expected.omega)


def test_policies_and_strategies_differ_by_more_than_the_tolerance():
    """Results of different policies or strategies differ by far more than the tolerance of the tests above."""
    weights = [_oracle("fedavg", private)[-1].omega["fc1.weight"] for private in ("none", "affine", "names:fc2.*")]
    weights += [_oracle(strategy, "none")[-1].omega["fc1.weight"] for strategy in ("fedadam", "fedavg-adam")]
    for i, one in enumerate(weights):
        for other in weights[:i]:
            assert np.abs(one - other).max() > 100 * TOLERANCE


def test_the_oracle_knows_nothing_of_fedpatch():
    """The oracle is independent only as long as it imports none of the code that it checks."""
    source = (Path(__file__).parent / "support" / "oracle.py").read_text()
    assert not [line for line in source.splitlines() if line.startswith(("from", "import")) and "fedpatch" in line]
    assert "device_agent" not in source and "coordinator" not in source
