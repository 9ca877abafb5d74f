"""What the tests of simulated faults begin with."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """The details of a failure are in the world's own log."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
