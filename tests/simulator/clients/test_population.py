"""A population holds the data that each client would load, in blocks that processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.simulator.clients.population import Population, load_population

NOWHERE = Path("/nonexistent")
PARTS = ("train_x", "train_y", "test_x", "test_y")


def _unused(*_: object) -> None:
    raise AssertionError("a population needs no model")


def _task(load: Callable[[int], DeviceData]) -> Task:
    """A user's task: client i's spec is its number, and there is no `load_many`."""
    return Task("own", "for tests", _unused, lambda spec, root: load(int(spec)), _unused, _unused, validation_share=0.0)  # type: ignore[arg-type]


def _data(train: int, test: int, first: int = 0, dtype: type = np.float32, wide: int = 3) -> DeviceData:
    """Inputs whose values are all different, counted from `first`; a target is its input's first value."""
    values: np.ndarray = np.arange(first, first + (train + test) * wide).reshape(-1, wide).astype(dtype)
    return DeviceData(values[:train], values[:train, 0], values[train:], values[train:, 0])


def _own(sizes: list[tuple[int, int]]) -> Population:
    task = _task(lambda index: _data(*sizes[index], first=1000 * index))
    return load_population(task, "{index}", len(sizes), 0, NOWHERE)


def _fill_the_inputs_of_client_1(population: Population) -> None:
    population.of(1).train_x.fill_(7.0)


def test_load_population_with_an_absent_file_names_the_folder(tmp_path):
    def missing(index: int) -> DeviceData:
        return np.load(tmp_path / f"machine-{index}.npy")  # type: ignore[no-any-return]

    with pytest.raises(DataError) as caught:
        load_population(_task(missing), "{index}", 2, 0, tmp_path)
    for word in (
        "'own'",
        "data '0'",
        f"in the folder {tmp_path}, which --data-root or FEDPATCH_DATA can name",
        "FileNotFoundError",
    ):
        assert word in str(caught.value)
    with pytest.raises(DataError, match="KeyError: 'x'"):
        load_population(_task(lambda _: dict[str, DeviceData]()["x"]), "{index}", 2, 0, tmp_path)


@pytest.mark.parametrize("options", ["", ",noisy-fraction=0.3"])
def test_each_client_has_what_its_device_would_load(options):
    population = load_population(digits.TASK, digits.TASK.simulation_data + options, 10, 3, NOWHERE)
    assert population.clients == 10
    for index in range(10):
        alone = digits.TASK.load_data(f"shard:{index}/10,seed=3{options}", NOWHERE)
        mine = population.of(index)
        assert all(np.array_equal(getattr(mine, part).numpy(), getattr(alone, part)) for part in PARTS)
        assert population.num_examples[index] == len(alone.train_x)
        assert population.counts_in_ua[index] == alone.counts_in_ua
    assert population.counts_in_ua.count(False) == (3 if options else 0)
    assert {getattr(population, part).dtype for part in PARTS} == {torch.float32, torch.int64}


@pytest.mark.parametrize("together", [False, True])
def test_validation_part_is_split_off_as_on_a_device(together):
    task = replace(_task(lambda index: _data(100 + index, 5)), ordered=True, validation_share=0.2)
    if together:
        task = replace(task, load_many=lambda specs, root: [task.load_data(spec, root) for spec in specs])
    population = load_population(task, "{index}", 2, 0, NOWHERE)
    assert population.num_examples == [80, 81]
    assert np.array_equal(population.of(1).train_x.numpy(), _data(101, 5).train_x[:81])
    assert len(population.of(1).test_x) == 5


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=6))
def test_clients_lie_one_after_another_and_lose_nothing(sizes):
    population = _own(sizes)
    assert population.num_examples == [train for train, _ in sizes]
    clients = [population.of(index) for index in range(population.clients)]
    for part in PARTS:
        assert torch.equal(torch.cat([getattr(client, part) for client in clients]), getattr(population, part))
    for index, client in enumerate(clients):
        assert client.train_x[0, 0] == client.train_y[0] == 1000 * index
        assert len(client.test_x) == len(client.test_y) == sizes[index][1]


def test_client_is_a_view_of_blocks_in_shared_memory():
    population = _own([(4, 2), (3, 1)])
    for part in PARTS:
        block, view = getattr(population, part), getattr(population.of(1), part)
        assert block.is_shared()
        assert view.untyped_storage().data_ptr() == block.untyped_storage().data_ptr()


@pytest.mark.medium
def test_other_process_gets_the_same_memory():
    population = _own([(4, 2), (3, 1), (2, 2)])
    others = [population.of(index).train_x.clone() for index in (0, 2)]
    process = mp.get_context("spawn").Process(target=_fill_the_inputs_of_client_1, args=(population,))
    process.start()
    process.join(200)
    assert process.exitcode == 0
    assert population.of(1).train_x.tolist() == [[7.0] * 3] * 3
    assert all(torch.equal(population.of(index).train_x, known) for index, known in zip((0, 2), others, strict=True))


def test_arrays_of_any_layout_are_accepted():
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    values.flags.writeable = False
    population = load_population(
        _task(lambda index: DeviceData(values[::-1], values[:, 1], values[::2], values[:3, 0])),
        "{index}",
        2,
        0,
        NOWHERE,
    )
    assert np.array_equal(population.of(1).train_x.numpy(), values[::-1])
    assert np.array_equal(population.of(1).test_y.numpy(), values[:3, 0])


@pytest.mark.parametrize(
    ("template", "clients", "problem"),
    [
        (digits.TASK.simulation_data, 0, "a population of 0 clients is none; take at least 1"),
        ("shard:0/10", 10, r"'shard:0/10' lacks \{index\}, so that every client would have the same data"),
        ("shard:{{index}}/{count}", 10, r"lacks \{index\}"),
        ("shard:{index}/{cuont}", 10, r"there is no field \{cuont\} \(known: \{index\}, \{count\}, \{seed\}\)"),
        ("shard:{}/{count}", 10, r"there is no field \{\}"),
        ("shard:{index.real}/{count}", 10, r"there is no field \{index\.real\}"),
        ("shard:{index}/{count", 10, r"cannot be filled in \(expected '\}' before end of string\)"),
        ("shard:{index}/count}", 10, "cannot be filled in .*a brace of its own is doubled"),
        ("shard:{index:q}/{count}", 10, "cannot be filled in"),
        ("shard:{index:{width}}/{count}", 10, "cannot be filled in"),
        ("shrad:{index}/{count}", 10, "data spec 'shrad:0/10': kind 'shrad' is unknown"),
    ],
)
def test_template_or_count_that_names_no_data_is_refused(template, clients, problem):
    with pytest.raises(UsageError, match=problem):
        load_population(digits.TASK, template, clients, 0, NOWHERE)


def test_template_fields_take_formats_and_doubled_braces():
    seen: list[str] = []

    def load_many(specs: Sequence[str], root: Path) -> list[DeviceData]:
        seen.extend(specs)
        return [_data(2, 1) for _ in specs]

    task = replace(_task(lambda _: _data(2, 1)), load_many=load_many)
    load_population(task, "{{{index:03d}}}@{seed}", 2, 8, NOWHERE)
    assert seen == ["{000}@8", "{001}@8"]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (
            _data(2, 1, wide=4),
            r"client 2: its training inputs are float32 of shape \(4,\) each, .* float32 of shape \(3,\)",
        ),
        (_data(2, 1, dtype=np.int64), "client 2: its training inputs are int64 .* those of client 0 float32"),
        (replace(_data(2, 1), test_y=np.array([1])), "client 2: its test targets are int64"),
        (replace(_data(2, 1), test_x=np.zeros((1, 5), np.float32)), "test_x of client 2 has examples of shape"),
        (
            replace(_data(2, 1), train_x=np.array([[0, 1, 2], [np.nan, 3, 4]], np.float32)),
            "train_x of client 2 holds NaN in row 1; remove or fill it",
        ),
        (
            replace(_data(2, 1), train_y=np.array(["cat", "dog"])),
            r"train_y of client 2 is of dtype <U3 \(row 0 holds 'cat'\), no numbers",
        ),
    ],
)
def test_data_of_a_client_that_fit_not_those_of_others_are_refused(other, problem):
    with pytest.raises(DataError, match=problem):
        load_population(_task(lambda index: other if index == 2 else _data(3, 2)), "{index}", 4, 0, NOWHERE)


def test_data_beyond_the_shared_memory_are_refused_with_the_remedy():
    vast = np.broadcast_to(np.int64(0), (2**48, 1))
    data = DeviceData(vast, vast, vast, vast, val_x=vast[:0], val_y=vast[:0])
    with pytest.raises(DataError, match=r"training inputs of all clients, \d+ GB, do not fit .*make /dev/shm larger"):
        load_population(_task(lambda _: data), "{index}", 1, 0, NOWHERE)


def test_load_many_with_a_wrong_count_is_refused():
    """`load_many` must return data for every spec; otherwise clients would get each other's data."""
    task = replace(_task(lambda _: _data(2, 1)), load_many=lambda specs, root: [_data(2, 1)])
    with pytest.raises(DataError, match="task 'own': load_many gave the data of 1 devices for 3 specs"):
        load_population(task, "{index}", 3, 0, NOWHERE)


@pytest.mark.parametrize("clients", [10**5, 10**7, 99_999_999_999])
def test_more_clients_than_the_data_allow_are_refused_at_once(clients, tmp_path):
    with pytest.raises((DataError, UsageError), match=r"at most 718 devices can share|is not KIND:I/N"):
        load_population(digits.TASK, "shard:{index}/{count},seed={seed}", clients, 0, tmp_path)


def test_clients_have_prepared_inputs_in_the_models_dtype():
    task = replace(_task(lambda _: _data(3, 2, dtype=np.float64)), prepare=lambda raw: raw + 1, input_shape=(3,))
    population = load_population(task, "{index}", 2, 0, NOWHERE)
    assert population.train_x.dtype == torch.float32
    np.testing.assert_array_equal(population.of(1).test_x.numpy(), _data(3, 2).test_x + 1)
