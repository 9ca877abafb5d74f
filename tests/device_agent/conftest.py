"""What tests of the device's processes share."""

from __future__ import annotations

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def installed():
    """Find fedpatch from any directory, as where it is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield
