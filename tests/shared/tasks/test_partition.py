"""The grammar of data specs, and the properties of the split that they name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.bundled.mnist import TEST_LABELS, TRAIN_LABELS, read_idx
from fedpatch.shared.tasks.bundled.partition import (
    DataSpec,
    Split,
    add_noise,
    noise_std,
    parse_data_spec,
    partitions,
)

KINDS = st.sampled_from(["shard", "even", "aligned"])
COUNTS = st.integers(1, 12)
SEEDS = st.integers(0, 2**40)


def _labels(smallest: int, largest: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.integers(0, 4), min_size=smallest, max_size=largest).map(np.array)


# Every label occurs in training, as in any real data set; otherwise the counts are arbitrary.
TRAIN = _labels(24, 90).map(lambda labels: np.concatenate([labels, np.arange(5)]))
TEST = _labels(24, 60)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("shard:0/10", DataSpec("shard", 0, 10)),
        ("aligned:3/200,seed=7", DataSpec("aligned", 3, 200, seed=7)),
        ("even:3/200,seed=7", DataSpec("even", 3, 200, seed=7)),
        ("shard:0/1,noisy", DataSpec("shard", 0, 1, noisy=True)),
        ("shard:1/2,noise=3.0", DataSpec("shard", 1, 2, noisy=True, noise=3.0)),
        ("shard:1/2,noisy-fraction=0.2,seed=1", DataSpec("shard", 1, 2, seed=1, noisy_fraction=0.2)),
        ("shard:1/2,noise=2,noisy-fraction=0.2", DataSpec("shard", 1, 2, noise=2.0, noisy_fraction=0.2)),
        ("shard:1/2,validation=0.1", DataSpec("shard", 1, 2, validation=0.1)),
        ("shard:1/2,validation=0", DataSpec("shard", 1, 2)),
    ],
)
def test_spec_selects_part_and_split(text, spec):
    assert parse_data_spec(text) == spec


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not KIND:I/N"),
        ("shard", "'shard' is not KIND:I/N"),
        ("shard:-1/10", "'shard:-1/10' is not KIND:I/N"),
        ("shard:1/10 ", "'shard:1/10 ' is not KIND:I/N"),
        ("shard:1/10000000000", "is not KIND:I/N"),
        ("iid:0/10", "kind 'iid' is unknown"),
        ("shard:10/10", "there is no device 10 among 10; they are numbered from 0"),
        ("shard:0/0", "there is no device 0 among 0"),
        ("shard:0/10,", "option '' is unknown"),
        ("shard:0/10,sede=1", "option 'sede=1' is unknown"),
        ("shard:0/10,noisy=1", "option 'noisy=1' is unknown"),
        ("shard:0/10,seed=-1", "'seed=-1': the seed must be a whole number"),
        ("shard:0/10,seed=", "'seed=': the seed must be a whole number"),
        ("shard:0/10,noisy-fraction=0,noisy-fraction=1", "'noisy-fraction' is given twice"),
        ("shard:0/10,noise=0", "'noise=0': the standard deviation"),
        ("shard:0/10,noise=inf", "'noise=inf': the standard deviation"),
        ("shard:0/10,noise=loud", "'noise=loud': the standard deviation"),
        ("shard:0/10,noisy-fraction=1.1", "'noisy-fraction=1.1': the fraction"),
        ("shard:0/10,noisy-fraction=nan", "'noisy-fraction=nan': the fraction"),
        ("shard:0/10,validation=0.6", "'validation=0.6': the share must be a number from 0 to 0.5"),
        ("shard:0/10,validation=nan", "'validation=nan': the share"),
        ("shard:0/10,noisy,noise=3", "'noisy' stands alone"),
        ("shard:0/10,noisy,noisy-fraction=0.2", "'noisy' stands alone"),
    ],
)
def test_wrong_spec_names_its_part_and_shows_a_right_one(text, problem):
    with pytest.raises(UsageError) as caught:
        parse_data_spec(text)
    message = str(caught.value)
    assert message.startswith(f"data spec {text!r}: ")
    assert problem in message
    for shown in message.rpartition("for example ")[2].split(" or "):
        parse_data_spec(shown)


@given(st.text(st.sampled_from("shardlignedo:/,=.0123456789-ysf"), max_size=40))
def test_any_text_is_a_spec_or_a_usage_error(text):
    try:
        spec = parse_data_spec(text)
    except UsageError:
        return
    assert 0 <= spec.index < spec.count


def partition(spec, train, test):
    """The positions of one device's training and test examples."""
    return Split.named_by(spec, train, test).of(spec.index)


def _whole_split(kind, count, seed, train, test):
    return [partition(DataSpec(kind, index, count, seed), train, test) for index in range(count)]


@given(COUNTS, SEEDS, TRAIN, TEST)
def test_every_example_goes_to_exactly_one_device(count, seed, train, test):
    parts = _whole_split("shard", count, seed, train, test)
    assert sorted(np.concatenate([mine for mine, _ in parts])) == list(range(len(train)))
    assert sorted(np.concatenate([mine for _, mine in parts])) == list(range(len(test)))


@given(SEEDS, TRAIN, st.lists(st.integers(0, 4), min_size=3, max_size=40))
def test_aligned_test_examples_go_to_exactly_one_device(seed, train, more_test):
    """An aligned split also loses and repeats no example, and no device is tested on a label that it lacks."""
    test = np.concatenate([np.repeat(np.arange(5), 24), more_test])
    parts = _whole_split("aligned", 3, seed, train, test)
    assert sorted(np.concatenate([mine for mine, _ in parts])) == list(range(len(train)))
    assert sorted(np.concatenate([mine for _, mine in parts])) == list(range(len(test)))
    for mine_train, mine_test in parts:
        assert set(test[mine_test]) <= set(train[mine_train])


def test_each_seed_has_its_own_split():
    labels = np.repeat(np.arange(10), 40)
    splits = {tuple(partition(DataSpec("shard", 0, 20, seed), labels, labels)[0]) for seed in range(8)}
    assert len(splits) > 4


@given(COUNTS, SEEDS, TRAIN, TEST)
def test_a_device_gets_two_shards_of_the_sorted_examples(count, seed, train, test):
    """Devices' shares differ by at most one example per shard; a share is at most two runs of the sorted examples."""
    parts = _whole_split("shard", count, seed, train, test)
    for position, labels in ((0, train), (1, test)):
        smallest = 2 * (len(labels) // (2 * count))
        assert all(smallest <= len(part[position]) <= smallest + 2 for part in parts)
    order = np.argsort(train, kind="stable")
    for mine, _ in parts:
        places = np.flatnonzero(np.isin(order, mine))
        assert np.count_nonzero(np.diff(places) > 1) <= 1


def test_both_parts_are_assigned_alike():
    """If the shards' bounds agree in both parts, every device is tested on exactly the labels that it trains on."""
    train, test = np.repeat(np.arange(10), 12), np.repeat(np.arange(10), 4)
    for mine_train, mine_test in _whole_split("shard", 10, 3, train, test):
        assert set(test[mine_test]) == set(train[mine_train])


def _by_definition(spec, train, test):
    """Return the split by its definition, example by example, without optimisation."""
    shards = 2 * spec.count
    in_order = [np.array(sorted(range(len(labels)), key=lambda at: (labels[at], at))) for labels in (train, test)]
    sizes = [[len(order) // shards + (shard < len(order) % shards) for shard in range(shards)] for order in in_order]
    if spec.kind == "even":
        sizes = [np.diff([at * len(order) // shards for at in range(shards + 1)]).tolist() for order in in_order]
    shard_of = [np.repeat(np.arange(shards), each) for each in sizes]
    if spec.kind == "aligned":
        of_label = [
            [np.flatnonzero(part[order] == label) for label in range(5)]
            for part, order in ((train, in_order[0]), (test, in_order[1]))
        ]
        for train_at, test_at in zip(*of_label, strict=True):
            for place, at in enumerate(test_at):
                shard_of[1][at] = shard_of[0][train_at[place * len(train_at) // len(test_at)]]
    mine = np.random.default_rng([spec.seed, 0]).permutation(shards)[2 * spec.index : 2 * spec.index + 2]
    return [order[np.isin(shard, mine)].tolist() for order, shard in zip(in_order, shard_of, strict=True)]


@given(KINDS, COUNTS, SEEDS, TRAIN, TEST)
@example("aligned", 20, 0, np.repeat(np.arange(2), 50), np.arange(2))
def test_a_split_computed_once_serves_every_device_as_defined(kind, count, seed, train, test):
    split = Split.named_by(DataSpec(kind, 0, count, seed), train, test)
    for index in range(count):
        expected = _by_definition(DataSpec(kind, index, count, seed), train, test)
        if expected[1]:
            assert [part.tolist() for part in split.of(index)] == expected
        else:
            with pytest.raises(DataError, match=f"aligned:{index}/{count} leaves this device without test examples"):
                split.of(index)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(4, 6), st.integers(0, 2)), max_size=8), TRAIN, TEST)
def test_devices_of_several_splits_can_be_asked_for_at_once(devices, train, test):
    specs = [DataSpec("shard", *place) for place in devices]
    for spec, parts in zip(specs, partitions(specs, train, test), strict=True):
        assert all(np.array_equal(*both) for both in zip(parts, partition(spec, train, test), strict=True))


def test_too_many_devices_error_has_the_largest_number():
    labels = np.arange(20)
    with pytest.raises(DataError, match=r"20 training examples cannot be cut into 22 shards; at most 10 devices"):
        partition(DataSpec("shard", 0, 11), labels, labels)
    with pytest.raises(DataError, match=r"8 test examples cannot be cut into 10 shards; at most 4 devices"):
        partition(DataSpec("shard", 0, 5), labels, labels[:8])


def test_aligned_needs_every_test_label_in_training():
    with pytest.raises(DataError, match="label 7 has test examples but no training examples"):
        partition(DataSpec("aligned", 0, 1), np.zeros(10, dtype=int), np.array([0, 7]))


@given(st.integers(1, 60), st.floats(0.0, 1.0), SEEDS)
def test_noisy_fraction_draws_that_many_devices(count, fraction, seed):
    stds = [noise_std(DataSpec("shard", i, count, seed, noisy_fraction=fraction), 3.0) for i in range(count)]
    assert sorted(stds) == [0.0] * (count - int(fraction * count)) + [3.0] * int(fraction * count)


def test_noise_strength_is_the_specs_or_the_tasks():
    """`noisy` uses the task's standard deviation, `noise=` its own; without either there is no noise."""
    stds = {text: noise_std(parse_data_spec(f"shard:0/2{text}"), 3.0) for text in ("", ",noisy", ",noise=0.5")}
    assert stds == {"": 0.0, ",noisy": 3.0, ",noise=0.5": 0.5}
    assert noise_std(parse_data_spec("shard:0/2,noise=0.5,noisy-fraction=1"), 3.0) == 0.5


def test_noise_is_normal_clipped_and_each_devices_own():
    inputs = np.full((200, 50), 0.5, dtype=np.float32)
    noisy = [add_noise(inputs, 0.1, DataSpec("shard", index, 2)) for index in (0, 0, 1)]
    assert noisy[0].dtype == np.float32
    assert noisy[0].std() == pytest.approx(0.1, rel=0.05)
    assert noisy[0].mean() == pytest.approx(0.5, abs=0.01)
    assert np.array_equal(noisy[0], noisy[1])
    assert not np.array_equal(noisy[0], noisy[2])
    loud = add_noise(inputs, 3.0, DataSpec("shard", 0, 2))
    assert (loud.min(), loud.max()) == (0.0, 1.0)


@pytest.mark.real_data("mnist/t10k-labels-idx1-ubyte.gz")
def test_shards_of_mnist_miss_as_in_the_paper(real_data):
    """At 400 devices about 7.5 % of MNIST's test examples carry a label that their device lacks; even, 1.2 %; aligned, none."""
    train, test = (read_idx(file.path(real_data)) for file in (TRAIN_LABELS, TEST_LABELS))

    def missed(kind: str, count: int = 400) -> float:
        parts = _whole_split(kind, count, 0, train, test)
        return sum(np.count_nonzero(~np.isin(test[theirs], train[mine])) for mine, theirs in parts) / len(test)

    assert missed("shard") == pytest.approx(0.075, abs=0.01)
    assert missed("shard", 200) == pytest.approx(0.008, abs=0.004)
    assert missed("even") == pytest.approx(0.012, abs=0.002)
    assert missed("aligned") == 0.0
