"""Fixtures of the tests of simulated faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Disable logging: the details of a failure are in the world's own log."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
