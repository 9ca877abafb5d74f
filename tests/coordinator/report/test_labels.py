"""What legends call the runs that are compared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.report.page import labels
from fedpatch.coordinator.report.series import Run
from tests.coordinator.report.report_runs import RUNS, info, record


def run(id: str, private: str = "affine", strategy: str = "fedavg", **settings: Any) -> Run:
    """A run of one round."""
    return Run(info(id, private=private, strategy=strategy, settings=settings), (record(1),))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ((run("1"), run("2", "all")), ["affine", "all"]),
        ((run("1"), run("2", strategy="fedadam")), ["fedavg", "fedadam"]),
        ((run("1"), run("2", "all"), run("3", "all", "fedadam")), ["fedavg, affine", "fedavg, all", "fedadam, all"]),
        ((run("1", seed=0), run("2", seed=1)), ["seed 0", "seed 1"]),
        ((run("1", grace_s=1), run("2", grace_s=2)), ["grace s 1", "grace s 2"]),
        ((run("1", broker="a"), run("2", broker="b")), ["1", "2"]),
        ((run("1"), run("2"), run("3", "all")), ["affine, 1", "affine, 2", "all, 3"]),
        ((run("1"),), ["1"]),
    ],
)
def test_labels_of_runs_name_the_settings_that_differ(runs, expected):
    """Settings that are the same everywhere are left out; ids stand where nothing else tells the runs apart."""
    assert list(labels(runs).values()) == expected


@given(st.lists(RUNS, min_size=1, max_size=5, unique_by=lambda run: run.info.id))
def test_labels_are_different_for_different_runs(runs):
    """Whatever their settings, each curve of a chart can be found in its legend."""
    found = labels(runs)
    assert len({*found.values()}) == len(runs)
