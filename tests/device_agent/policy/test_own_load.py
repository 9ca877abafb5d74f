"""The load that the training causes."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.policy.own_load import OwnLoadAverage


def test_its_load_rises_and_fades_as_the_kernels_does():
    """After a minute of work its load is in the mean by two thirds; a minute later two thirds of that are gone."""
    load = OwnLoadAverage(threads=2, cpus=4)
    load.see(True, 0.0)
    load.see(False, 60.0)
    assert load.mean == pytest.approx(0.5 * 0.632, abs=1e-3)
    load.see(False, 120.0)
    assert load.mean == pytest.approx(0.5 * 0.632 * 0.368, abs=1e-3)


def test_work_that_has_just_begun_is_not_yet_in_the_mean():
    load = OwnLoadAverage(threads=4, cpus=4)
    load.see(True, 100.0)
    load.see(True, 101.0)
    assert 0.0 < load.mean < 0.02
