"""One broker after the other, each for all tests. Each test has its own fleet, since brokers keep state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.broker.contract.targets import TARGETS, Target

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with TARGETS[request.param](request.param) as target:
        yield target


@pytest.fixture
def fleet() -> str:
    """A name that no other test uses."""
    return f"fleet-{next(_numbers)}"
