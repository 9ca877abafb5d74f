"""What the work itself takes of the device."""

from __future__ import annotations

import os

import pytest

from fedpatch.device_agent.policy.usage import OwnLoadAverage
from fedpatch.device_agent.runtime.trainer import resident_mib


def test_a_process_has_its_memory():
    """This one has some; none was started, or it has just ended: nothing."""
    assert resident_mib(os.getpid()) > 5.0
    assert resident_mib(None) == 0.0
    assert resident_mib(2**22 + 1) == 0.0


def test_its_load_rises_and_fades_as_the_kernels_does():
    """After a minute at work two thirds of it are in the mean, and a minute later two thirds of that are gone."""
    load = OwnLoadAverage(threads=2, cpus=4)
    load.see(True, 0.0)
    load.see(False, 60.0)
    assert load.mean == pytest.approx(0.5 * 0.632, abs=1e-3)
    load.see(False, 120.0)
    assert load.mean == pytest.approx(0.5 * 0.632 * 0.368, abs=1e-3)


def test_work_that_has_just_begun_is_not_yet_in_the_mean():
    """So what others do is not taken for one's own."""
    load = OwnLoadAverage(threads=4, cpus=4)
    load.see(True, 100.0)
    load.see(True, 101.0)
    assert 0.0 < load.mean < 0.02
