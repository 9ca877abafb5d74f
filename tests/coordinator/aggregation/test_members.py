"""Updates that are means of several devices: flat and two-level rounds give the same model, caps count members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.limit_syntax import ExamplesCap, Limits
from fedpatch.coordinator.aggregation.norm_pace import Pace
from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements, decode_and_validate_update
from fedpatch.coordinator.aggregation.registered_counts import check_members
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.messages import TrainPlan
from tests.support.specs import report

PLAN = TrainPlan("adam", 0.1, 20)
SCHEMA = Schema(
    (
        TensorSpec("w", (5, 3), "float32", "weight"),
        TensorSpec("w:exp_avg", (5, 3), "float32", "moment"),
        TensorSpec("w:step", (), "float32", "moment"),
    )
)
BASE = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in SCHEMA.specs}


def mean(updates: dict[str, tuple[int, dict[str, Array]]], members: dict[str, int] | None = None, **changes: Any):
    """Return the mean of updates, each given with its number of examples."""
    counts = {device: examples for device, (examples, _) in updates.items()}
    limits = replace(Limits(), **changes)
    found = aggregate(
        RoundUpdates(counts, lambda device: updates[device][1], members=members or {}),
        RoundBase(SCHEMA, BASE, PLAN),
        limits,
    )
    return found.mean


@st.composite
def sites(draw: st.DrawFn) -> list[list[tuple[int, dict[str, Array]]]]:
    """Return the updates of one to five sites, each with one to six devices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from((1e-3, 1.0, 1e3)))

    def update() -> tuple[int, dict[str, Array]]:
        values = {spec.name: np.asarray(rng.normal(size=spec.shape) * scale, np.float32) for spec in SCHEMA.specs}
        return int(rng.integers(1, 1000)), values

    return [[update() for _ in range(draw(st.integers(1, 6)))] for _ in range(draw(st.integers(1, 5)))]


@settings(max_examples=60, deadline=None)
@given(sites())
def test_two_level_mean_is_the_flat_mean_to_2_ulp_of_the_largest_value(split):
    flat = {f"{at}-{one}": update for at, site in enumerate(split) for one, update in enumerate(site)}
    expected = mean(flat)
    upwards = {}
    for at, site in enumerate(split):
        own = {str(one): update for one, update in enumerate(site)}
        upwards[f"site-{at}"] = sum(examples for examples, _ in site), mean(own)
    found = mean(upwards, {f"site-{at}": len(site) for at, site in enumerate(split)})
    for spec in SCHEMA.specs:
        largest = max(np.abs(update[spec.name]).max() for _, update in flat.values())
        assert np.abs(found[spec.name] - expected[spec.name]).max() <= 2 * np.spacing(largest)


def test_cap_of_examples_is_multiplied_by_members():
    counts = {"ann": 50, "bob": 10, "site": 900}
    assert example_weights(counts, ExamplesCap(most=20), {"site": 30}) == {"ann": 20, "bob": 10, "site": 600}


def test_median_of_examples_counts_each_member_of_a_relay():
    # One device has 1000 examples, thirty have 10 each: the median is 10.
    found = example_weights({"ann": 1000, "site": 300}, ExamplesCap(factor=2.0), {"site": 30})
    assert found == {"ann": 20, "site": 300}
    # Two devices have 1000 examples each, three have 10.
    found = example_weights({"ann": 1000, "ben": 1000, "site": 30}, ExamplesCap(factor=2.0), {"site": 3})
    assert found == {"ann": 20, "ben": 20, "site": 30}


def test_relay_weighs_the_cap_of_each_member_in_the_mean():
    updates = {
        device: (examples, {name: np.full_like(array, value) for name, array in BASE.items()})
        for device, examples, value in (("ann", 50, 0.0), ("site", 900, 1.0))
    }
    found = mean(updates, {"site": 30}, examples=ExamplesCap(most=20))
    assert found["w"] == pytest.approx(np.full((5, 3), 600 / 620))


def test_pace_of_a_relay_is_that_of_its_mean_member_and_its_counters_may_count_more():
    single, relay = Pace.of(PLAN, 100), Pace.of(PLAN, 1000, members=10)
    assert (relay.steps, relay.decays) == (single.steps, single.decays)
    assert relay.most_steps == Pace.of(PLAN, 1000).steps


@pytest.mark.parametrize(
    ("members", "registered", "most", "words"),
    [
        (3, 3, 2, "max_members is 2"),
        (7, 3, 100, "registered 3"),
    ],
)
def test_update_of_more_members_than_allowed_is_refused(members, registered, most, words):
    with pytest.raises(UpdateRefused, match=words):
        check_members(members, registered, most)


@pytest.mark.parametrize(("members", "registered"), [(1, 1), (6, 3), (4, 5), (4, None)])
def test_members_about_as_registered_are_accepted(members, registered):
    check_members(members, registered, 6)


def test_report_has_the_key_members_only_for_a_mean_of_several_devices():
    single = report()
    assert "members" not in single.plain
    assert replace(single, members=3).plain["members"] == 3


@pytest.mark.parametrize(("examples", "accepted"), [(3, False), (4, True)])
def test_update_of_a_relay_has_an_example_of_each_member_so_that_no_weight_is_0(examples, accepted):
    """A median below one example would leave the updates of the round without any weight, and end the run."""
    terms = UpdateRequirements(SCHEMA, frozenset(), "ab" * 32, limits=Limits(max_members=4))
    meta = replace(report(base="ab" * 32), num_examples=examples, members=4).plain
    packed = pack(BASE, SCHEMA, meta, "fp32")
    try:
        decode_and_validate_update(packed.blob, terms, encoding="fp32", raw_bytes=packed.raw_bytes)
    except UpdateRefused as error:
        assert (accepted, str(error)) == (False, "the mean of 4 devices, trained on 3 examples")
    else:
        assert accepted
        weights = example_weights({"ann": 50, "site": examples}, ExamplesCap(factor=1.0), {"site": 4})
        assert min(weights.values()) > 0


@pytest.mark.parametrize(("most", "accepted"), [(1, False), (4, True)])
def test_update_of_a_relay_is_accepted_up_to_max_members(most, accepted):
    terms = UpdateRequirements(SCHEMA, frozenset(), "ab" * 32, limits=Limits(max_members=most))
    meta = replace(report(base="ab" * 32), members=4).plain
    packed = pack(BASE, SCHEMA, meta, "fp32")

    def read() -> int:
        found, _ = decode_and_validate_update(
            packed.blob, terms, encoding="fp32", raw_bytes=packed.raw_bytes, registered=10, members=4
        )
        return found.members

    if accepted:
        assert read() == 4
    else:
        with pytest.raises(UpdateRefused, match="max_members is 1"):
            read()
