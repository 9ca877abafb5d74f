"""The strategies of the paper's Table 1, with test vectors that a reader can recompute."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.control_variates import add_controls
from fedpatch.coordinator.aggregation.limit_syntax import parse_aggregate_rule
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy, refusal_of_rule
from fedpatch.coordinator.aggregation.strategy_calls import apply_strategy, begin_strategy
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.coordinator.find_strategy import STRATEGIES, find_strategy
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, save_checkpoint
from fedpatch.coordinator.strategies.fedadam import FedAdam
from fedpatch.coordinator.strategies.fedavg import FedAvg
from fedpatch.coordinator.strategies.fedavgm import FedAvgM
from fedpatch.coordinator.strategies.fedyogi import FedYogi
from fedpatch.coordinator.strategies.server_optimizer import ServerOptimizer
from fedpatch.shared.errors import SchemaMismatch, UsageError
from fedpatch.shared.tensors.arrays import MOMENTS, Schema, TensorSpec
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire.messages import TrainPlan
from tests.shared.arbitrary_tensors import FLOATS, bits, same, schemas, tensors_of

SCHEMA = Schema(
    (
        TensorSpec("bn.running_var", (2,), "float32", "stats"),
        TensorSpec("bn.weight", (2,), "float32", "affine"),
        TensorSpec("fc.weight", (2,), "float32", "weight"),
        TensorSpec("n", (), "int64", "buffer"),
    )
)

every_strategy = pytest.mark.parametrize(
    "strategy", [find_strategy(name) for name in STRATEGIES.own], ids=list(STRATEGIES.own)
)


class Mean(Strategy):
    """Returns the mean itself."""

    name, description = "mean", ""

    def finish(self, state, mean, schema):
        return mean


class Doubles(Strategy):
    """Returns float64 for each tensor."""

    name, description = "doubles", ""

    def finish(self, state, mean, schema):
        return replace(state, tensors={name: value * 0.5 for name, value in mean.items()})


class Forgetful(Strategy):
    """Returns the model without its integer."""

    name, description = "forgetful", ""

    def finish(self, state, mean, schema):
        return replace(state, tensors={name: value for name, value in mean.items() if name != "n"})


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Forgetful(), r"\(n: absent, before int64"),
        (Mean(), "finish returned dict, not a ServerState"),
        (Doubles(), r"\(n: float64 .*before int64.*use \.astype"),
    ],
)
def test_result_of_finish_that_is_no_state_of_the_model_is_refused_with_the_strategys_name(strategy, words):
    state = strategy.init(filled(SCHEMA, 1), SCHEMA)
    with pytest.raises(UsageError, match=f"strategy '{strategy.name}': .*{words}"):
        apply_strategy(strategy, state, filled(SCHEMA, 2), SCHEMA)


def filled(schema: Schema, value: float) -> dict[str, np.ndarray]:
    return {spec.name: np.full(spec.shape, value, spec.dtype) for spec in schema.specs}


def after(strategy: Strategy, *means: float) -> ServerState:
    """Return the state that began at 1, after rounds with means of these values."""
    state = strategy.init(filled(SCHEMA, 1), SCHEMA)
    for mean in means:
        state = strategy.finish(state, filled(strategy.travelling(SCHEMA), mean), SCHEMA)
    return state


# --- finding a strategy ---------------------------------------------------------------------------


def test_strategies_of_fedpatch_are_found_by_name():
    assert set(STRATEGIES.own) >= {"fedavg", "fedadam", "fedavg-adam"}
    for name, strategy in STRATEGIES.own.items():
        assert find_strategy(name).name == strategy.name == name
        assert strategy.description


def test_unknown_strategy_is_a_usage_error():
    with pytest.raises(UsageError, match=r"unknown strategy 'fedavgadam'; did you mean 'fedavg-adam'\?"):
        find_strategy("fedavgadam")


def test_server_learning_rate_needs_a_server_optimizer():
    assert find_strategy("fedadam") == FedAdam(server_learning_rate=0.01)
    assert find_strategy("fedadam", 0.5) == FedAdam(server_learning_rate=0.5)
    for name in ("fedavg", "fedavg-adam"):
        with pytest.raises(UsageError, match=f"'{name}' has no server optimizer; leave"):
            find_strategy(name, 0.5)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_server_learning_rate_must_be_above_zero(rate):
    with pytest.raises(UsageError, match="fedadam: server learning rate"):
        find_strategy("fedadam", rate)


# --- plans of devices -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "optimizer", "moments"),
    [("fedavg", "sgd", ()), ("fedadam", "sgd", ()), ("fedavg-adam", "adam", ("exp_avg", "exp_avg_sq", "step"))],
)
def test_plan_is_the_local_update_of_table_1(name, optimizer, moments):
    plan = find_strategy(name).plan(learning_rate=0.3, batch_size=20, epochs=2, steps=7, seed=9)
    assert plan == TrainPlan(optimizer, 0.3, 20, 2, 7, 0.9, 0.999, 1e-7, moments, 9)


def test_plan_has_the_constants_of_its_strategy():
    class Other(FedAvg):
        beta_1, beta_2, epsilon = 0.5, 0.75, 1e-3

    assert Other().plan(0.3, 20, 1, 0, 9) == TrainPlan("sgd", 0.3, 20, 1, 0, 0.5, 0.75, 1e-3, (), 9)


@every_strategy
def test_plan_survives_the_wire(strategy):
    plan = strategy.plan(learning_rate=0.003, batch_size=1, epochs=0, steps=10, seed=2**53)
    assert msgspec.convert(msgspec.to_builtins(plan), TrainPlan) == plan


def test_moments_travel_with_their_tensors():
    """FedAvg-Adam sends three more tensors for each trainable one."""
    assert find_strategy("fedavg").travelling(SCHEMA) == find_strategy("fedadam").travelling(SCHEMA) == SCHEMA
    assert find_strategy("fedavg-adam").travelling(SCHEMA) == SCHEMA.with_moments(MOMENTS)


# --- every strategy -------------------------------------------------------------------------------


@every_strategy
@given(data=st.data())
def test_state_of_any_model_fits_its_schemas(strategy, data):
    schema = data.draw(schemas(min_size=1))
    travelling = strategy.travelling(schema)
    state = strategy.init(data.draw(tensors_of(schema, finite=True)), schema)
    mean = data.draw(tensors_of(travelling, finite=True))
    for number, reached in enumerate([state, strategy.finish(state, mean, schema)]):
        assert reached.round == number
        travelling.check(reached.tensors)
        strategy.optimizer_schema(schema).check(reached.server)


@every_strategy
def test_first_state_is_the_initial_model_and_zero_moments(strategy):
    state = after(strategy)
    assert state.round == 0
    assert same({name: state.tensors[name] for name in SCHEMA.names}, filled(SCHEMA, 1))
    moments = {name: array for name, array in state.tensors.items() if name not in SCHEMA}
    assert all(not array.any() for array in moments.values())
    # Reddi et al.'s rules begin with v = tau^2, all others with zero.
    assert {float(array.max()) for array in state.server.values()} <= {0.0, float(np.float32(1e-3**2))}


@every_strategy
def test_finish_changes_no_earlier_state(strategy):
    state, mean = after(strategy, 2), filled(strategy.travelling(SCHEMA), 5)
    before = [bits(tensors) for tensors in (state.tensors, state.server, mean)]
    once, twice = (strategy.finish(state, mean, SCHEMA) for _ in range(2))
    assert before == [bits(tensors) for tensors in (state.tensors, state.server, mean)]
    assert same(once.tensors, twice.tensors)
    assert same(once.server, twice.server)


@every_strategy
def test_model_or_mean_of_other_tensors_is_refused(strategy):
    with pytest.raises(SchemaMismatch, match="missing tensors"):
        strategy.init({}, SCHEMA)
    state, mean = after(strategy), filled(strategy.travelling(SCHEMA), 5)
    for wrong in (mean | {"more": np.zeros(1)}, {name: mean[name] for name in list(mean)[1:]}):
        with pytest.raises(SchemaMismatch):
            strategy.finish(state, wrong, SCHEMA)


@every_strategy
def test_statistics_and_buffers_are_the_mean(strategy):
    state = after(strategy, 5, 7)
    for name in ("bn.running_var", "n"):
        assert np.all(state.tensors[name] == 7)


@every_strategy
def test_state_read_back_gives_the_same_next_round(strategy):
    state = after(strategy, 2, 4)
    travelling, kept = strategy.travelling(SCHEMA), strategy.optimizer_schema(SCHEMA)
    restored = []
    for tensors, schema in ((state.tensors, travelling), (state.server, kept)):
        packed = pack(tensors, schema, {}, "fp32+zstd")
        restored.append(unpack(packed.blob, encoding="fp32+zstd", raw_bytes=packed.raw_bytes, schema=schema)[1])
    mean = filled(travelling, 3)
    straight = strategy.finish(state, mean, SCHEMA)
    resumed = strategy.finish(ServerState(state.round, restored[0], restored[1]), mean, SCHEMA)
    assert resumed.round == straight.round == 3
    assert same(resumed.tensors, straight.tensors)
    assert same(resumed.server, straight.server)


# --- each strategy alone --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedavg-adam"])
def test_averaging_strategies_take_the_mean(name):
    strategy = find_strategy(name)
    assert same(after(strategy, 5, 7).tensors, filled(strategy.travelling(SCHEMA), 7))
    assert after(strategy, 5).server == {}


def test_step_counts_are_averaged_by_examples():
    strategy = find_strategy("fedavg-adam")
    mean = WeightedMean(strategy.travelling(SCHEMA))
    mean.add(filled(mean.schema, 10), 1)
    mean.add(filled(mean.schema, 20), 3)
    state = strategy.finish(after(strategy), mean.result(), SCHEMA)
    assert state.tensors["fc.weight:step"] == 17.5
    assert np.all(state.tensors["fc.weight:exp_avg_sq"] == 17.5)


def test_fedadam_by_hand():
    """Two rounds from 1: delta is 1 - 0.5 = 0.5, then omega - 0.5. There is no bias correction.

    Round 1: m = 0.1 * 0.5 = 0.05, v = 0.001 * 0.25 = 0.00025, omega = 1 - 0.01 * 0.05 / (sqrt(0.00025) + 0.0001).
    """
    first = after(FedAdam(), 0.5)
    omega = 1 - 0.01 * 0.05 / (0.015811388300841896 + 0.0001)
    for name in ("fc.weight", "bn.weight"):
        np.testing.assert_allclose(first.tensors[name], [omega, omega], rtol=1e-6)
        np.testing.assert_allclose(first.server[f"{name}:exp_avg"], [0.05, 0.05], rtol=1e-6)
        np.testing.assert_allclose(first.server[f"{name}:exp_avg_sq"], [0.00025, 0.00025], rtol=1e-6)
    m = 0.9 * 0.05 + 0.1 * (omega - 0.5)
    v = 0.999 * 0.00025 + 0.001 * (omega - 0.5) ** 2
    second = after(FedAdam(), 0.5, 0.5)
    np.testing.assert_allclose(second.tensors["fc.weight"], omega - 0.01 * m / (math.sqrt(v) + 1e-4), rtol=1e-6)
    np.testing.assert_allclose(second.server["fc.weight:exp_avg"], m, rtol=1e-6)
    np.testing.assert_allclose(second.server["fc.weight:exp_avg_sq"], v, rtol=1e-6)


def test_server_learning_rate_scales_the_step():
    one, two = (1 - after(FedAdam(server_learning_rate=rate), 0.5).tensors["fc.weight"] for rate in (0.01, 0.02))
    np.testing.assert_allclose(two, 2 * one, rtol=1e-5)


def reference_server(name: str, means: list[float], eta: float, beta: float, beta_2: float, tau: float) -> list[float]:
    """Return models of one parameter that begins at 1, by pseudo-code of Hsu et al. 2019 and Reddi et al. 2021, Algorithm 2."""
    x, m, v, models = 1.0, 0.0, 0.0 if name == "fedadam" else tau**2, []
    for mean in means:
        delta = mean - x
        if name == "fedavgm":
            m = beta * m + delta
            x += eta * m
        else:
            m = beta * m + (1 - beta) * delta
            v = {
                "fedadagrad": v + delta**2,
                "fedyogi": v - (1 - beta_2) * delta**2 * math.copysign(1, v - delta**2),
                "fedadam": beta_2 * v + (1 - beta_2) * delta**2,
            }[name]
            x += eta * m / (math.sqrt(v) + tau)
        models.append(x)
    return models


@pytest.mark.parametrize(
    ("name", "beta", "beta_2", "tau"),
    [
        ("fedavgm", 0.9, 0.0, 0.0),
        ("fedadam", 0.9, 0.999, 1e-4),
        ("fedyogi", 0.9, 0.99, 1e-3),
        ("fedadagrad", 0.0, 0.0, 1e-3),
    ],
)
@given(means=st.lists(st.floats(-4, 4), min_size=1, max_size=8), eta=st.floats(0.01, 1.0))
def test_server_optimizer_steps_by_the_equation_of_its_paper(name, beta, beta_2, tau, means, eta):
    strategy = find_strategy(name, eta)
    state, models = strategy.init(filled(SCHEMA, 1), SCHEMA), []
    for mean in means:
        # The reference computes in float64; the state's tensors are float32.
        state = strategy.finish(state, filled(SCHEMA, mean), SCHEMA)
        models.append(float(state.tensors["fc.weight"][0]))
    expected = reference_server(name, [float(np.float32(mean)) for mean in means], eta, beta, beta_2, tau)
    np.testing.assert_allclose(models, expected, rtol=1e-3, atol=1e-3)


SERVER_OPTIMIZERS = sorted(
    name for name, one in STRATEGIES.own.items() if issubclass(one, ServerOptimizer) and not one.moments
)


@pytest.mark.parametrize("strategy", [find_strategy(name) for name in SERVER_OPTIMIZERS], ids=SERVER_OPTIMIZERS)
@given(st.data())
def test_first_step_of_a_server_optimizer_is_towards_the_mean(strategy, data):
    schema = data.draw(schemas(min_size=1, dtypes=FLOATS[1:]))
    begun, mean = data.draw(tensors_of(schema, finite=True)), data.draw(tensors_of(schema, finite=True))
    tensors = strategy.finish(strategy.init(begun, schema), mean, schema).tensors
    for spec in schema.specs:
        if spec.trainable:
            moved = np.sign(tensors[spec.name] - begun[spec.name])
            wanted = np.sign(mean[spec.name] - begun[spec.name])
            assert np.all((moved == wanted) | (moved == 0))


@pytest.mark.parametrize("name", ["fedyogi", "fedadagrad"])
def test_second_moments_of_reddi_et_al_begin_at_the_square_of_tau(name):
    server = find_strategy(name).init(filled(SCHEMA, 1), SCHEMA).server
    assert {key.rpartition(":")[2]: np.unique(array).tolist() for key, array in server.items()} == {
        "exp_avg": [0.0],
        "exp_avg_sq": [np.float32(1e-6)],
    }


def test_second_moment_of_fedyogi_stays_where_it_equals_the_square_of_the_gradient():
    moment = np.asarray([4.0, 0.0])
    assert FedYogi().second_moment(moment, moment).tolist() == [4.0, 0.0]


@pytest.mark.parametrize("sign", [-1, 1])
def test_moments_beyond_half_precision_are_its_greatest_numbers(sign):
    schema = Schema((TensorSpec("w", (2,), "float16", "weight"),))
    strategy = FedAvgM(server_learning_rate=1.0)
    state = strategy.init(filled(schema, sign * 6e4), schema)
    moments = strategy.finish(state, filled(schema, -sign * 6e4), schema).server
    assert [np.unique(array).tolist() for array in moments.values()] == [[sign * 65504.0]]


def test_fedadam_never_makes_a_variance_negative():
    state = after(FedAdam(server_learning_rate=1.0), *np.geomspace(1, 1e-6, 50))
    assert np.all(state.tensors["bn.running_var"] > 0)


@given(
    rounds=st.lists(
        st.tuples(
            st.integers(1, 9),
            st.dictionaries(st.sampled_from("abcdefg"), st.floats(-4, 4), min_size=1),
        ),
        min_size=1,
        max_size=8,
    )
)
@example([(2, {"a": 1.0}), (9, {"a": 1.0}), (3, {"b": 2.0})])
def test_control_variate_stays_the_mean_over_the_fleet_though_a_resume_changes_its_size(rounds):
    """Each round is played with a fleet of so many devices; some devices of it send their new c_i."""
    schema = Schema((TensorSpec("w", (1,), "float64", "weight"),))
    strategy = find_strategy("scaffold")
    state = strategy.init({"w": np.zeros(1)}, schema)
    own: dict[str, float] = {}
    for number, (devices, new) in enumerate(rounds, 1):
        c = state.tensors["w:control"]
        sent = sum(c + value - own.get(device, 0.0) for device, value in new.items()) / len(new)
        mean = {"w": np.zeros(1), "w:control": sent}
        added = add_controls(state, mean, sorted(new), round_number=number, population=devices)
        own |= new
        state = replace(added.kept_in(state), tensors=added.mean)
        population = max(devices, len(own))
        assert state.population == population
        np.testing.assert_allclose(state.tensors["w:control"] * population, sum(own.values()), atol=1e-9)


def test_new_control_variate_has_the_dtype_of_the_mean():
    schema = Schema((TensorSpec("w", (1,), "float32", "weight"),))
    state = find_strategy("scaffold").init(filled(schema, 0), schema)
    mean = {"w": np.zeros(1, "f4"), "w:control": np.full(1, 0.3, "f4")}
    added = add_controls(state, mean, ["a"], round_number=1, population=3)
    assert added.mean["w:control"].dtype == np.float32


def test_population_of_a_control_variate_is_in_the_checkpoint(tmp_path):
    strategy = find_strategy("scaffold")
    state = replace(strategy.init(filled(SCHEMA, 1), SCHEMA), counted={"a": 3}, population=7)
    save_checkpoint(tmp_path, state, SCHEMA, {})
    found = load_checkpoint(tmp_path)[0]
    assert (found.counted, found.population) == ({"a": 3}, 7)


class TwoArguments(FedAvg):
    """A finish with too few arguments."""

    def finish(self, state, mean):  # type: ignore[override]
        return state


class Careless(FedAvg):
    """A finish that reads a tensor that no state has."""

    def finish(self, state, mean, schema):
        return replace(state, tensors={"fc.weight": state.server["velocity"]})


class NoState(FedAvg):
    """An init that returns the tensors alone."""

    def init(self, tensors, schema):
        return dict(tensors)


class NoInit(FedAvg):
    """An init that fails."""

    def init(self, tensors, schema):
        raise ZeroDivisionError("no examples")


class Momentless(FedAvgM):
    """A step of a server optimizer without the moment that it keeps."""

    def step(self, gradient, *moments):
        return gradient, ()


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (TwoArguments(), r"strategy 'fedavg': finish failed: TypeError: .*; correct the class TwoArguments$"),
        (
            Careless(),
            r"finish failed: KeyError: 'velocity'; correct the class Careless \(test_strategies.py, line \d+\)",
        ),
        (NoState(), "init returned dict, not a ServerState"),
        (NoInit(), "strategy 'fedavg': init failed: ZeroDivisionError: no examples"),
        (Momentless(), "strategy 'fedavgm': finish failed: ValueError"),
    ],
)
def test_fault_of_a_strategy_is_found_before_a_run_and_names_class_and_line(strategy, words):
    with pytest.raises(UsageError, match=words):
        begin_strategy(strategy, filled(SCHEMA, 1), SCHEMA)


@every_strategy
def test_every_strategy_passes_its_trial_and_begins_as_it_would_without(strategy):
    begun, plain = begin_strategy(strategy, filled(SCHEMA, 1), SCHEMA), strategy.init(filled(SCHEMA, 1), SCHEMA)
    assert same(begun.tensors, plain.tensors)
    assert same(begun.server, plain.server)


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ("mean", ()),
        ("centred", ("scaffold",)),
        ("trimmed:0.2", ("fedavg-adam", "scaffold")),
    ],
)
def test_rule_that_would_part_values_that_belong_together_is_refused_with_the_strategys_name(rule, refused):
    found = {name: refusal_of_rule(parse_aggregate_rule(rule), find_strategy(name)) for name in STRATEGIES.own}
    assert {name for name, why in found.items() if why} == set(refused)
    assert all(name in (found[name] or "") for name in refused)
