"""The oracle that faults are judged by is the one that everything else is judged by, where everybody counts."""

from __future__ import annotations

import numpy as np

from tests.faults.lesson import Lesson
from tests.faults.scene import NAMES, PRIVATE, STRATEGY, data_spec
from tests.faults.slow_task import TASK, build_model
from tests.support import oracle
from tests.system.oracle_task import device_data

COHORTS = [("ann", "bob"), ("bob",), ("ann", "bob", "cat")]


def test_where_everybody_counts_it_is_the_oracle():
    """Model and patches after three rounds are those of tests.support.oracle, to the last bit."""
    lesson = Lesson(NAMES)
    for cohort in COHORTS:
        lesson.round(cohort, cohort)
    data = {name: device_data(data_spec(name)) for name in NAMES}
    last = oracle.run_mtfl(
        build_model,
        {name: (one.train_x, one.train_y, one.test_x, one.test_y) for name, one in data.items()},
        COHORTS,
        STRATEGY,
        PRIVATE,
        TASK.learning_rates[STRATEGY],
        batch_size=TASK.batch_size,
    )[-1]
    for name, value in last.omega.items():
        np.testing.assert_array_equal(lesson.omega[name], value)
    for device in NAMES:
        batches, patch = lesson.patch(device)
        assert batches == 4 * sum(device in cohort for cohort in COHORTS) - (2 if device == "ann" else 0)
        for name, value in last.patches[device].items():
            np.testing.assert_array_equal(patch[name], value)


def test_who_is_not_counted_changes_no_model_but_its_own_patch():
    """A device whose update comes too late leaves the model as it would be without it, and has learned all the same."""
    with_late, without = Lesson(NAMES), Lesson(NAMES)
    with_late.round(("ann", "bob"), ("bob",))
    without.round(("bob",), ("bob",))
    for name, value in without.model().items():
        np.testing.assert_array_equal(with_late.model()[name], value)
    assert [lesson.patch("ann")[0] for lesson in (with_late, without)] == [3, 0]


def test_a_failed_round_leaves_the_model_as_it_was():
    lesson = Lesson(NAMES)
    before = lesson.model()
    lesson.round(("ann",), ())
    assert lesson.model().keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(lesson.model()[name], value)
