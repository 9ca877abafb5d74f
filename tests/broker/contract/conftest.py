"""One broker after the other, each for all tests. Each test has its own fleet, since brokers keep state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.broker.contract.targets import TARGETS, Target

_numbers = itertools.count(1)


_BETWEEN_OTHERS = {"small-packets", "short-queues", "mosquitto-3.1.1", "forgetful-3.1.1"}
"""Brokers whose limits and protocol versions the other brokers have too, in other combinations."""


@pytest.fixture(
    scope="session",
    params=[pytest.param(one, marks=pytest.mark.slow if one in _BETWEEN_OTHERS else ()) for one in TARGETS],
)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with TARGETS[request.param](request.param) as target:
        yield target


@pytest.fixture
def fleet() -> str:
    """A name that no other test uses."""
    return f"fleet-{next(_numbers)}"
