"""The quantised step of the server: coordinator and devices hold the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.quantised_step import quantised_step, step_seed
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.coordinator.find_strategy import STRATEGIES
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, save_checkpoint
from fedpatch.shared.tensors.arrays import Schema, TensorSpec, moment_name, values_digest
from fedpatch.shared.tensors.moment_bounds import check_moments
from fedpatch.shared.tensors.packing import Packed, pack, unpack
from fedpatch.shared.wire.messages import ENCODINGS, is_delta

SCHEMA = Schema(
    (
        TensorSpec("fc.weight", (30, 40), "float32", "weight"),
        TensorSpec("bn.bias", (7,), "float32", "affine"),
        TensorSpec("bn.running_var", (7,), "float32", "stats"),
        TensorSpec("bn.num_batches_tracked", (), "int64", "stats"),
    )
)
DELTAS = tuple(encoding for encoding in ENCODINGS if is_delta(encoding))
TRAINED = tuple(spec.name for spec in SCHEMA.specs if spec.trainable)


def drawn(schema: Schema, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return values like the result of a round."""
    rng = np.random.default_rng(seed)
    return {spec.name: np.abs(rng.normal(0.0, scale, spec.shape)).astype(spec.dtype) for spec in schema.specs}


def began(strategy: Strategy, seed: int) -> ServerState:
    """Return the state before the first round."""
    return strategy.init(drawn(SCHEMA, seed), SCHEMA)


def played(strategy: Strategy, encoding: str, seed: int, rounds: int = 3) -> list[tuple[ServerState, ServerState]]:
    """Return for each round the intended state and the state after the quantised step; the first pair is the initial state."""
    states = [(began(strategy, seed), began(strategy, seed))]
    travelling = strategy.travelling(SCHEMA)
    for number in range(1, rounds + 1):
        before = states[-1][1]
        aimed = strategy.finish(before, drawn(travelling, seed + number), SCHEMA)
        states.append((aimed, quantised_step(before, aimed, travelling, encoding, step_seed(seed, number))[0]))
    return states


def decoded(packed: Packed, before: ServerState) -> dict[str, np.ndarray]:
    raw_bytes, base = packed.raw_bytes, before.tensors
    return unpack(packed.blob, encoding=packed.encoding, raw_bytes=raw_bytes, schema=SCHEMA, base=base)[1]


some_strategy = st.sampled_from(sorted(STRATEGIES.own)).map(lambda name: STRATEGIES.own[name]())


@given(strategy=some_strategy, encoding=st.sampled_from(DELTAS), seed=st.integers(0, 2**20))
@settings(deadline=None)
def test_state_equals_what_a_device_decodes(strategy, encoding, seed):
    before = played(strategy, encoding, seed, 1)[-1][1]
    schema = strategy.travelling(SCHEMA)
    aimed = strategy.finish(before, drawn(schema, seed + 9), SCHEMA)
    after, packed = quantised_step(before, aimed, schema, encoding, 5)
    held = {name: array.copy() for name, array in before.tensors.items()}
    meta, decoded = unpack(packed.blob, encoding=packed.encoding, raw_bytes=packed.raw_bytes, schema=schema, base=held)
    assert values_digest(decoded, schema) == values_digest(after.tensors, schema)
    assert meta == {"round": aimed.round + 1}
    assert (after.round, packed.encoding) == (aimed.round, encoding)


@given(strategy=some_strategy, encoding=st.sampled_from(DELTAS), seed=st.integers(0, 2**20))
@settings(deadline=None)
def test_state_of_the_strategy_is_not_quantised(strategy, encoding, seed):
    for aimed, after in played(strategy, encoding, seed)[1:]:
        own = strategy.optimizer_schema(SCHEMA)
        assert values_digest({name: after.server[name] for name in own.names}, own) == values_digest(
            {name: aimed.server[name] for name in own.names}, own
        )
        assert after.server.keys() == set(own.names)


GOALS = {
    "normal": lambda rng, shape: rng.normal(0.0, 1.0, shape),
    "alike": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "heavy": lambda rng, shape: rng.normal(0.0, 1.0, shape) ** 5,
}


@pytest.mark.matrix
@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("goals", sorted(GOALS))
@pytest.mark.parametrize("encoding", DELTAS)
def test_error_of_rounding_never_grows(encoding, goals, devices):
    """A few devices train to their own optimum in each round, however large the rounding error of a round is."""
    strategy, rng = STRATEGIES.own["fedavg"](), np.random.default_rng(7)
    own = [{**drawn(SCHEMA, 2), "fc.weight": GOALS[goals](rng, (30, 40)).astype(np.float32)} for _ in range(devices)]
    wanted = np.mean([one["fc.weight"] for one in own], axis=0)
    state = began(strategy, 1)
    for number in range(1, 121):
        mean = WeightedMean(SCHEMA)
        for device, goal in enumerate(own):
            packed = pack(goal, SCHEMA, {}, encoding, base=state.tensors, seed=1000 * number + device)
            mean.add(decoded(packed, state), 10)
        aimed = strategy.finish(state, mean.result(), SCHEMA)
        state = quantised_step(state, aimed, SCHEMA, encoding, step_seed(3, number))[0]
    missed = np.sqrt(np.mean((state.tensors["fc.weight"] - wanted) ** 2))
    # One device reaches its optimum. Several devices differ in every round, and their updates are rounded each time.
    spread = np.sqrt(np.mean([(one["fc.weight"] - wanted) ** 2 for one in own]))
    size = max(1, np.sqrt(np.mean(wanted**2)))
    assert missed < (2e-3 * size if devices == 1 else 1.5 * spread)


def test_same_seed_gives_the_same_bits():
    strategy = STRATEGIES.own["fedavg"]()
    before = began(strategy, 1)
    aimed = strategy.finish(before, drawn(SCHEMA, 2), SCHEMA)
    first, again, other = (quantised_step(before, aimed, SCHEMA, "delta-int8", seed) for seed in (1, 1, 2))
    assert first[1] == again[1] != other[1]
    assert values_digest(first[0].tensors, SCHEMA) == values_digest(again[0].tensors, SCHEMA)
    assert len({step_seed(run, number) for run in range(20) for number in range(20)}) == 400


@pytest.mark.parametrize("name", sorted(STRATEGIES.own))
def test_resume_takes_the_same_next_step(name, tmp_path):
    strategy = STRATEGIES.own[name]()
    states = played(strategy, "delta-int8", 4)
    save_checkpoint(tmp_path, states[2][1], SCHEMA, {})
    found = load_checkpoint(tmp_path)[0]
    schema = strategy.travelling(SCHEMA)
    aimed = strategy.finish(found, drawn(schema, 4 + 3), SCHEMA)
    after = quantised_step(found, aimed, schema, "delta-int8", step_seed(4, 3))[0]
    assert values_digest(after.tensors, schema) == values_digest(states[3][1].tensors, schema)


@given(
    encoding=st.sampled_from(DELTAS),
    seed=st.integers(0, 2**20),
    spread=st.floats(0.0, 6.0),
    growth=st.floats(0.8, 1.2),
    steps=st.integers(1, 30),
)
@settings(deadline=None)
def test_moments_of_gradients_are_accepted_in_any_encoding(encoding, seed, spread, growth, steps):
    """Rounding makes no first moment greater than its second one allows."""
    strategy = STRATEGIES.own["fedavg-adam"]()
    schema = strategy.travelling(SCHEMA)
    plan = strategy.plan(0.001, 10, 1, 0, 0)
    rng = np.random.default_rng(seed)
    state = began(strategy, seed)
    for number in (1, 2):
        update = drawn(schema, seed + number)
        for name in TRAINED:
            first, second = (state.tensors[moment_name(name, moment)] for moment in ("exp_avg", "exp_avg_sq"))
            size = np.minimum(10 ** rng.normal(-3.0, spread, first.shape), 1.0) * (rng.random(first.shape) < 0.8)
            for step in range(steps):
                gradient = size * growth**step * rng.choice([1.0, 0.9, 1.1, -0.1], first.shape)
                first = np.asarray(0.9 * first + 0.1 * gradient, np.float32)
                second = np.asarray(0.999 * second + 0.001 * gradient**2, np.float32)
            update |= {moment_name(name, "exp_avg"): first, moment_name(name, "exp_avg_sq"): second}
        packed = pack(update, schema, {}, encoding, base=state.tensors, seed=seed)
        _, received = unpack(
            packed.blob, encoding=encoding, raw_bytes=packed.raw_bytes, schema=schema, base=state.tensors
        )
        check_moments(received, schema, plan)
        state = quantised_step(state, strategy.finish(state, received, SCHEMA), schema, encoding, seed)[0]
        check_moments(state.tensors, schema, plan)
