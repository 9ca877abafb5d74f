"""A model that is converted to flat memory and back loses no value, with any private tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.simulator.kernels.flat_model import Layout, WorkingModel
from fedpatch.simulator.kernels.model_layers import layers_of
from tests.simulator.studies import FEATURES, POLICIES, build_cnn, build_model

MODELS = {"2nn": build_model, "cnn": build_cnn}
COMMON_POLICIES = ("none", "stats", "affine", "all")


def layout_of(build, private):
    """The layout of a model under a policy, and the model."""
    model = build()
    layers = layers_of(model)
    assert layers is not None
    return Layout(model, layers, parse_policy(private).private_names(schema_of(model))), model


def random_state(model):
    """Random values for everything in the model's state that is no count."""
    return {name: torch.randn_like(value) for name, value in model.state_dict().items() if value.is_floating_point()}


@pytest.mark.matrix
@pytest.mark.parametrize("private", COMMON_POLICIES)
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_unflatten_undoes_flatten(build, private):
    layout, model = layout_of(build, private)
    state = random_state(model)
    back = layout.unflatten(layout.flatten(state))
    assert set(back) == set(layout.public)
    assert set(layout.public) | set(layout.private) == set(state)
    assert layout.public_size + layout.private_size == sum(value.numel() for value in state.values())
    for name, value in back.items():
        assert value.is_contiguous()
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


@pytest.mark.parametrize("private", COMMON_POLICIES)
def test_moments_lie_where_their_values_lie(private):
    """The moments of trained values are restored; statistics have no moments, and are zero in the vector."""
    layout, model = layout_of(build_model, private)
    state = {f"{name}:exp_avg": value for name, value in random_state(model).items() if name in layout.trained}
    flat = layout.flatten(state, ":exp_avg")
    back = layout.unflatten(flat, ":exp_avg")
    assert set(back) == {f"{name}:exp_avg" for name in layout.public if name in layout.trained}
    for name, value in back.items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)
    assert not flat[: layout.trained_from].any()


@pytest.mark.parametrize("private", COMMON_POLICIES)
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_trained_values_lie_in_one_piece_after_the_statistics(build, private):
    layout, _ = layout_of(build, private)
    for places, trained_from in ((layout.public, layout.trained_from), (layout.private, layout.private_trained_from)):
        starts = [place.start for place in places.values()]
        assert starts == sorted(starts)
        assert all((place.start >= trained_from) is (name in layout.trained) for name, place in places.items())


def test_tensors_read_from_a_vector_are_copies():
    layout, model = layout_of(build_model, "none")
    flat = layout.flatten(random_state(model))
    taken = layout.unflatten(flat)
    before = {name: value.clone() for name, value in taken.items()}
    flat.zero_()
    for name, value in taken.items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("private", ["names:fc1.weight", "names:fc1.*"])
def test_private_first_weights_keep_all_their_rows(private):
    """Features can be left out only of weights that travel: a patch is kept whole."""
    assert layout_of(build_model, private)[0].rows is None
    assert layout_of(build_model, "all")[0].rows is not None
    assert layout_of(build_cnn, "none")[0].rows is None


@given(used=st.sets(st.integers(0, FEATURES - 1)), private=st.sampled_from(POLICIES[:4]))
def test_a_model_with_fewer_features_is_the_whole_one_on_such_inputs(used, private):
    """Without the rows of unused features, the outputs equal those of the whole model if these inputs are zero."""
    layout, model = layout_of(build_model, private)
    layers = layers_of(model)
    assert layers is not None
    working = WorkingModel(model, layers, layout.private, grads=False)
    rows, chosen = working.layout.rows, torch.tensor(sorted(used), dtype=torch.int64)
    assert rows is not None
    whole = layout.flatten(model.state_dict())
    for name, place in layout.private.items():
        place.canonical(working.private).copy_(model.state_dict()[name])
    working.use_features(len(used))
    working.public[: rows.start] = whole[: rows.start]
    working.public[rows.start : working.length] = rows.stored(whole)[chosen].reshape(-1)
    x = torch.zeros(5, FEATURES, dtype=torch.float64)
    x[:, chosen] = torch.randn(5, len(used), dtype=torch.float64)
    torch.testing.assert_close(working.infer(x[:, chosen]), model.eval()(x))


@pytest.mark.parametrize("kept", [1, 256])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_passes_that_are_kept_are_those_of_a_new_model(monkeypatch, build, kept):
    monkeypatch.setattr("fedpatch.simulator.kernels.flat_model.KEPT_PASSES", kept)
    model = build()
    start = torch.cat([value.reshape(-1) for value in random_state(model).values()]).abs()
    shape = (FEATURES,) if build is build_model else (1, 3, 4)
    again = _working(model)
    for number, (examples, rate) in enumerate([(6, 0.1), (6, None), (3, 0.1), (6, 0.2), (6, 0.1), (9, None)]):
        x, grad = torch.randn(examples, *shape).double(), torch.randn(examples, 3).double()
        anew = _working(model)
        for one in (again, anew):
            one.public.copy_(start)
        inputs = again.room_for(x.shape).copy_(x) if number % 2 else x
        torch.testing.assert_close(again.outputs(inputs), anew.outputs(x), rtol=0, atol=0)
        again.backward(grad, rate), anew.backward(grad, rate)
        torch.testing.assert_close(again.public, anew.public, rtol=0, atol=0)
        if rate is None:
            torch.testing.assert_close(again.public_grad, anew.public_grad, rtol=0, atol=0)


@pytest.mark.parametrize("grads", [False, True])
def test_rows_begin_a_cache_line(grads):
    layout, model = layout_of(build_model, "none")
    layers = layers_of(model)
    assert layers is not None
    assert layout.rows is not None
    working = WorkingModel(model, layers, frozenset(), grads=grads)
    for vector in (working.public, working.public_grad)[: 1 + grads]:
        assert len(vector) == layout.public_size
        assert layout.rows.stored(vector).data_ptr() % 64 == 0


def test_clients_with_unlike_features_take_turns_on_one_model():
    model = build_model()
    turns, start = _working(model), torch.randn(_working(model).layout.public_size).double().abs()
    for count in (5, 12, 5, 7, 12):
        x, grad = torch.randn(6, count).double(), torch.randn(6, 3).double()
        alone = _working(model)
        for one in (turns, alone):
            one.public.copy_(start)
            one.use_features(count)
            one.outputs(x)
            one.backward(grad, 0.1)
        torch.testing.assert_close(turns.public, alone.public, rtol=0, atol=0)
        assert not torch.equal(turns.public[: turns.length], start[: turns.length])
        assert torch.equal(turns.public[turns.length :], start[turns.length :])


def _working(model):
    layers = layers_of(model)
    assert layers is not None
    return WorkingModel(model, layers, (), grads=True)
