"""The folder of real data for tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE_THE_CHECKOUT = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture
def real_data(request) -> Path:
    """The data folder, if it holds the file that the test asks for by the `real_data` marker."""
    wanted = request.node.get_closest_marker("real_data").args[0]
    chosen = os.environ.get("FEDPATCH_DATA")
    root = Path(chosen).expanduser() if chosen else BESIDE_THE_CHECKOUT
    if not (root / wanted).exists():
        pytest.skip(f"{wanted} is not in the data folder; set FEDPATCH_DATA to a folder that holds it")
    return root
