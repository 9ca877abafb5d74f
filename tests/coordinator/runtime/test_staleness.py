"""The age of carried work in the mean of a round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.runtime.aggregator import Aggregator


@pytest.mark.parametrize(("rounds", "versions"), [(3, 3), (7, 3), (7, 0)])
def test_work_is_as_old_as_the_versions_since_its_base_however_many_rounds_have_failed(rounds, versions):
    aggregator: Any = Aggregator.__new__(Aggregator)
    aggregator.state = SimpleNamespace(round=5)
    aggregator._spec = SimpleNamespace(carry=CarryPolicy(max_staleness=9, power=1.0))
    aggregator._bases = SimpleNamespace(of=lambda work: {"version": work.version})
    work = CarriedWork(round=10 - rounds, epoch=1, version=5 - versions, base="ab", encoding="fp32")
    found = aggregator._staleness(work)
    assert (found.versions, found.factor) == (versions, 1 / (1 + versions))
    assert found.base == {"version": 5 - versions}
