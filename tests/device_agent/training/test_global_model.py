"""The model from which a round is trained: bit by bit the coordinator's, for any kind of download, or none."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.state.model_cache import ModelCache
from fedpatch.device_agent.training.global_model import read_global_model
from fedpatch.shared.errors import SchemaMismatch, WireError
from fedpatch.shared.wire.messages import ENCODINGS, is_delta
from tests.device_agent.device_rounds import ADAM, SGD, Scene
from tests.device_agent.model_deltas import Versions
from tests.device_agent.toy_tasks import TOY
from tests.support.damage_on_disk import flip_bit
from tests.support.masked_group import terms_of

DELTAS = [one for one in ENCODINGS if is_delta(one)]


@pytest.fixture
def versions(tmp_path):
    """Versions of a model whose batch norm has private gamma and beta."""
    return Versions(Scene(tmp_path, TOY, SGD, "affine"))


@pytest.fixture
def store(tmp_path):
    return ModelCache(tmp_path / "held")


def read(versions, store, command):
    """The model from which training would begin."""
    return read_global_model(command, versions.scene.public, store)


def assert_is(versions, number, tensors):
    """Check that `tensors` are the values of a version, and no others."""
    assert versions.content(tensors) == versions.content(versions.tensors[number])


@pytest.mark.matrix
@pytest.mark.parametrize("encoding", DELTAS)
@pytest.mark.parametrize("plan", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("begins", range(4))
def test_steps_lead_to_the_very_bits_of_the_coordinator(tmp_path, store, encoding, plan, begins):
    versions = Versions(Scene(tmp_path, TOY, plan, "affine"), encoding)
    versions.hold(store, begins)
    assert_is(versions, -1, read(versions, store, versions.command(begins)))
    assert store.version() == versions.manifests[-1].digest


def test_a_model_that_was_come_to_is_held_for_the_next_round(versions, store):
    assert_is(versions, 0, read(versions, store, versions.command(to=0)))
    for number in (1, 3):
        begins = [one.digest for one in versions.manifests].index(store.version())
        assert_is(versions, number, read(versions, store, versions.command(begins, number)))
        assert store.version() == versions.manifests[number].digest
    assert [path.name for path in store.path.parent.iterdir()] == [store.path.name]


def test_a_model_that_no_steps_will_lead_from_is_not_held(versions, store):
    read(versions, store, versions.command(hold=False))
    assert not store.path.parent.exists()
    assert_is(versions, 0, read(versions, None, versions.command(to=0)))


def test_failed_save_of_the_held_model_does_not_fail_the_round(versions, store, caplog):
    store.path.parent.write_text("where a directory should be")
    with caplog.at_level(logging.WARNING):
        assert_is(versions, -1, read(versions, store, versions.command()))
    assert "the next round downloads the whole global model" in caplog.text


def _missing(versions, store):
    store.forget()
    return versions.command(1)


def _cut(versions, store):
    store.path.write_bytes(store.path.read_bytes()[:-1])
    return versions.command(1)


def _another(versions, store):
    versions.hold(store, 0)
    return versions.command(1)


def _without_the_first(versions, store):
    command = versions.command(1)
    return replace(command, steps=command.steps[1:])


def _backwards(versions, store):
    command = versions.command(1)
    return replace(command, steps=command.steps[::-1])


def _of_other_content(versions, store):
    command = versions.command(1)
    last = command.steps[-1]
    return replace(command, steps=(*command.steps[:-1], replace(last, delta=replace(last.delta, content="00" * 32))))


def _spoilt(versions, store):
    flip_bit(Path(versions.steps[-1].blob.path))
    return versions.command(1)


def _gone(versions, store):
    Path(versions.steps[-1].blob.path).unlink()
    return versions.command(1)


def _of_another_policy(versions, store):
    folder = versions.scene.folder / "other"
    folder.mkdir()
    others = Versions(Scene(folder, TOY, SGD, "all"))
    others.hold(store, 1)
    return replace(versions.command(1), held=others.manifests[1].digest)


@pytest.mark.parametrize(
    "fault",
    [
        _missing,
        _cut,
        _another,
        _without_the_first,
        _backwards,
        _of_other_content,
        _spoilt,
        _gone,
        _of_another_policy,
    ],
    ids=lambda fault: fault.__name__.strip("_"),
)
def test_deltas_that_do_not_lead_to_the_model_fail_the_download(versions, store, fault):
    versions.hold(store, 1)
    command = fault(versions, store)
    before = store.path.read_bytes() if store.path.exists() else None
    with pytest.raises(WireError, match="no way from the global model that is held to that of the round: "):
        read(versions, store, command)
    assert (store.path.read_bytes() if store.path.exists() else None) == before


def test_a_model_of_another_shape_is_no_fault_of_its_steps(versions, store):
    versions.hold(store, 1)
    command = versions.command(1)
    with pytest.raises(SchemaMismatch, match="need the same version"):
        read(versions, store, replace(command, model=replace(command.model, schema="00" * 32)))


@given(st.data())
def test_training_begins_from_the_very_version_that_was_asked_for_or_not_at_all(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("scene")
    versions, store = Versions(Scene(folder, TOY, SGD, "affine")), ModelCache(folder / "held")
    held, named = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    versions.hold(store, held)
    steps = tuple(data.draw(st.lists(st.sampled_from(versions.steps), max_size=4)))
    path = Path(data.draw(st.sampled_from([str(store.path), *(one.blob.path for one in versions.steps)])))
    spoil = data.draw(st.none() | st.integers(0, path.stat().st_size - 1))
    if spoil is not None:
        blob = bytearray(path.read_bytes())
        blob[spoil] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(blob)
    try:
        tensors = read(versions, store, replace(versions.command(named), steps=steps))
    except WireError:
        return
    if steps:
        assert versions.content(tensors) == steps[-1].delta.content
    else:
        assert_is(versions, -1, tensors)


def test_values_are_compared_and_not_their_packing(versions, store):
    versions.hold(store, 2)
    tensors = read(versions, store, versions.command(2, 2))
    for name, value in versions.tensors[2].items():
        np.testing.assert_array_equal(tensors[name], value)


def assert_values_are_checked(versions, store, command):
    """Check that training does not begin on other values than the request names, and holds nothing for a later round."""
    held = store.version()
    with pytest.raises(WireError, match="values with digest"):
        read(versions, store, replace(command, content="0" * 64))
    assert store.version() == held


@pytest.mark.parametrize("begins", [None, 1, 3], ids=["whole", "by steps", "held"])
def test_model_with_other_values_than_the_request_names_is_refused_however_it_came(versions, store, begins):
    if begins is not None:
        versions.hold(store, begins)
    assert_values_are_checked(versions, store, versions.command(begins))
    assert_is(versions, -1, read(versions, store, versions.command(begins)))
    assert store.version() == versions.manifests[-1].digest


def test_delta_to_another_model_is_refused_though_its_own_digest_fits(versions, store):
    """The coordinator sends a model without gradients as a "delta" that names its own result."""
    versions.hold(store, 2)
    zeros = {name: np.zeros_like(value) for name, value in versions.tensors[-1].items()}
    command = versions.lie(zeros, begins=2)
    assert_is_of(zeros, read(versions, store, replace(command, content="", hold=False)), versions)
    with pytest.raises(WireError, match="values with digest"):
        read(versions, store, command)


def test_values_that_only_a_delta_names_are_not_held_under_the_digest_of_the_model(versions, store):
    """A former coordinator names no values: the round is trained as before, and the next one begins with what is known."""
    versions.hold(store, 2)
    lie = versions.lie({name: 0 * value for name, value in versions.tensors[-1].items()}, begins=2)
    read(versions, store, replace(lie, content=""))
    assert store.version() == versions.manifests[2].digest


def test_held_values_that_are_not_those_of_their_version_are_refused_in_an_honest_round(versions, store):
    """A device of an earlier version may hold a lie of another round under the true digest."""
    lie = {name: 0 * value for name, value in versions.tensors[-1].items()}
    versions.hold(store, 3, lie)
    with pytest.raises(WireError, match="values with digest"):
        read(versions, store, versions.command(3))


@pytest.mark.parametrize("begins", [None, 1, 3])
def test_masked_round_without_the_digest_of_its_values_trains_nothing(versions, store, begins):
    if begins is not None:
        versions.hold(store, begins)
    with pytest.raises(WireError, match="does not name the values"):
        read(versions, store, versions.command(begins, content="", secure=terms_of(8)))


def assert_is_of(expected, found, versions):
    """Check the values of a model."""
    assert versions.content(found) == versions.content(expected)
