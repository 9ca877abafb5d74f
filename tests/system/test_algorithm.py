"""Whole rounds, with agents as processes and a real broker, have the results of Algorithm 1 of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.device_agent.state.patch_store import CONTROLS, PatchKey, PatchStore
from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.tensors.patches import parse_policy, policy_of_names
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Committed
from tests.support import oracle
from tests.support.brokers import Client, Mosquitto, client
from tests.support.textbook import scaffold
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE, TASK, build_model, device_data
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker]

SEED, ROUNDS = 3, 6
TOLERANCE = 1e-5
DEVICES = {
    "ann": "n=37,test=30,seed=1",
    "bob": "n=12,test=30,seed=2",
    "cat": "n=24,test=30,seed=3",
    "dan": "n=5,test=30,seed=4",
}
LATECOMER = "dan"
_NAMES = "names:bn1.running_*,fc3.*"
_EACH_ONCE = {("fedadam", "stats"), ("fedavg-adam", "affine")}
TERMS = [
    pytest.param(strategy, private, marks=() if (strategy, private) in _EACH_ONCE else pytest.mark.slow)
    for strategy in ("fedavg", "fedadam", "fedavg-adam")
    for private in ("none", "stats", "affine", "all", _NAMES)
]
"""CI plays the two strategies with a server's step, each with another policy; SCAFFOLD's test has the policy `none`."""


class Witness:
    """Records the coordinator's messages to the devices of `fleet` through the given client."""

    def __init__(self, client: Client, fleet: str) -> None:
        self._client = client
        self._fleet = fleet
        client.link.subscribe(topics.down(fleet, "any").replace("any", "+"))
        client.settle()

    def rounds(self, run: str) -> list[list[str]]:
        """Return the devices whose updates were committed in rounds 1, 2, ... of `run`."""
        self._client.settle()
        committed: dict[int, set[str]] = {}
        for event in self._client.seen:
            if not isinstance(event, Received):
                continue
            topic = topics.parse_topic(self._fleet, event.topic)
            if topic is None or topic.kind != "down":
                continue
            envelope = decode(event.payload)
            if isinstance(envelope.body, Committed) and envelope.run == run:
                committed.setdefault(envelope.round, set()).add(topic.device)
        return [sorted(committed.get(number, ())) for number in range(1, max(committed, default=0) + 1)]


@dataclass
class Stage:
    """Four agents at a broker, a witness of the messages, and the file that decides whether the latecomer takes part."""

    fleet: Fleet
    witness: Witness
    admission: Path


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Agents for all tests, since they need seconds to start; their patches are deleted before each run."""
    directory = tmp_path_factory.mktemp("fleet")
    admission = directory / "admission"
    with Mosquitto() as broker, client(broker.url, "witness") as reader, Fleet(broker.url, directory) as fleet:
        for device, data in DEVICES.items():
            order = f"file:{admission}" if device == LATECOMER else "always"
            fleet.start(device, REFERENCE, data, order, ["--private", "none"])
        fleet.wait_ready()
        yield Stage(fleet, Witness(reader, fleet.name), admission)


class Doorkeeper(Silent):
    """A view that admits the latecomer once it has declined to take part."""

    def __init__(self, admission: Path) -> None:
        self._admission = admission
        admission.write_text("decline not yet\n")

    def say(self, line: str) -> None:
        if line.startswith(f"{LATECOMER} declined"):
            self._admission.write_text("accept\n")


def _play(
    stage: Stage, state_dir: Path, strategy: str, private: str, **changes: object
) -> tuple[RunSummary, ServerState]:
    """Run over the network from initial patches; return the summary and the coordinator's state after the run."""
    for agent in stage.fleet.agents.values():
        for patch in (path for path in agent.patches.rglob("*") if path.is_file()):
            patch.unlink()
    terms = {"strategy": strategy, "private": private, "seed": SEED, "rounds": ROUNDS, "participation": 0.75}
    terms |= {"norm_bound": "off", "encoding": "fp32+zstd", **changes}
    # Without the latecomer, two of three are enough; the round waits for all devices that accept.
    settings = stage.fleet.settings(state_dir, REFERENCE, quorum=0.6, **terms)
    summary = start_run(settings, Doorkeeper(stage.admission))
    state, _, _ = load_checkpoint(run_directory(state_dir, summary.run))
    return summary, state


def _patch(stage: Stage, device: str, private: str) -> dict[str, Array]:
    """Return the private values of a device."""
    schema = schema_of(build_model())
    key = PatchKey(TASK.name, schema.digest, str(policy_of_names(parse_policy(private).keeps(schema), schema)))
    return dict(PatchStore(stage.fleet.agents[device].patches).load(key, "another run", 0).values)


def _oracle(rounds: list[list[str]], strategy: str, private: str) -> list[oracle.Round]:
    data = {name: device_data(spec) for name, spec in DEVICES.items()}
    return oracle.run_mtfl(
        build_model,
        {name: oracle.arrays_of(one) for name, one in data.items()},
        rounds,
        strategy,
        private,
        TASK.learning_rates[strategy],
        TASK.server_learning_rates.get(strategy, 0.0),
        TASK.batch_size,
        seed=SEED,
    )


def _assert_same_and_moved(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Equal to 1e-5, for moments relative to their size, since second moments are tiny; and far from the initial values."""
    assert found.keys() == expected.keys()
    initial = initial_tensors(TASK, SEED)
    moments = {name for name in found.keys() - initial.keys() if not name.endswith(":control")}
    for name, value in expected.items():
        size = min(1.0, float(np.abs(value).max())) if name in moments else 1.0
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE * size, err_msg=name)
        moved = float(np.abs(found[name] - initial.get(name, np.zeros_like(value))).max())
        assert moved > 100 * TOLERANCE * size, f"{name} moved by {moved} only"


def _assert_partial_and_late(rounds: list[list[str]]) -> None:
    """Check the test's conditions: every device took part, but not all in any round, and the latecomer not in the first."""
    assert len(rounds) == ROUNDS
    assert set().union(*rounds) == set(DEVICES)
    assert all(set(cohort) < set(DEVICES) for cohort in rounds)
    assert LATECOMER not in rounds[0]


@pytest.mark.parametrize(("strategy", "private"), TERMS)
def test_rounds_over_the_network_are_those_of_algorithm_1(stage, tmp_path, strategy, private):
    summary, state = _play(stage, tmp_path, strategy, private)
    rounds = stage.witness.rounds(summary.run)
    _assert_partial_and_late(rounds)
    history = _oracle(rounds, strategy, private)
    for record, cohort, expected in zip(summary.rounds, rounds, history, strict=True):
        accuracies = list(expected.user_accuracy.values())
        assert (record.outcome, record.reported) == ("aggregated", len(cohort))
        assert record.user_accuracy == pytest.approx(np.mean(accuracies))
        assert record.user_accuracy_min == pytest.approx(min(accuracies))
        assert record.num_examples == sum(len(device_data(DEVICES[device]).train_x) for device in cohort)
    last = history[-1]
    _assert_same_and_moved(state.tensors, {**last.omega, **oracle.flat(last.moments)})
    _assert_same_and_moved(state.server, oracle.flat(last.server_moments))
    for device in DEVICES:
        expected_patch = {**last.patches[device], **oracle.flat(last.patch_moments[device])}
        _assert_same_and_moved(_patch(stage, device, private), expected_patch)


def test_rounds_over_the_network_are_those_of_scaffold(stage, tmp_path):
    """Model, c, and c_i of each device, with partial participation, by Karimireddy et al. 2020, Algorithm 1."""
    summary, state = _play(stage, tmp_path, "scaffold", "none", max_num_examples="off")
    rounds = stage.witness.rounds(summary.run)
    _assert_partial_and_late(rounds)
    data = {name: oracle.arrays_of(device_data(spec)) for name, spec in DEVICES.items()}
    model = build_model()
    oracle.load(model, initial_tensors(TASK, SEED))
    rate, batch_size = TASK.learning_rates["fedavg"], TASK.batch_size
    x, c, c_i = scaffold(model, data, rounds, eta_l=rate, batch_size=batch_size, seed=SEED)
    _assert_same_and_moved(state.tensors, {**x, **{f"{name}:control": value for name, value in c.items()}})
    key = PatchKey(TASK.name, schema_of(build_model()).digest, "none")
    for device, agent in stage.fleet.agents.items():
        found = PatchStore(agent.patches / CONTROLS).load(key, summary.run, ROUNDS + 1).values
        _assert_same_and_moved(found, {f"{name}:control": value for name, value in c_i[device].items()})
