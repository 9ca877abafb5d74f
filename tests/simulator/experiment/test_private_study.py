"""Studies with differential privacy: the coordinator's arithmetic, with noise from the seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import Study


def study_of(**changes: Any) -> Study:
    terms: dict[str, Any] = {"clients": 4, "strategy": "fedavg", "private": "all", "rounds": 2}
    terms |= {"dp": "central", "noise_multiplier": 0.001, "dp_clip": 100.0, "delta": 1e-5}
    return make_study(task=find_task("digits"), task_ref="digits", **{**terms, **changes})


def curve(study: Study) -> list[float]:
    return [point.user_accuracy for point in simulate(study).points]


def test_equal_seeds_give_equal_noise_and_other_seeds_other_noise():
    loud = study_of(noise_multiplier=1.0, dp_clip=0.1)
    assert curve(loud) == curve(loud)
    assert curve(loud) != curve(replace(loud, noise_multiplier=2.0))


def test_noise_and_clip_that_bind_nothing_change_little_and_loud_noise_learns_nothing():
    """The clients of the task hold equally many examples, so uniform weights are those of the plain mean."""
    plain = curve(study_of(dp="off", noise_multiplier=None, dp_clip=None))
    assert curve(study_of(dp_clip=20.0))[-1] == pytest.approx(plain[-1], abs=0.1)
    assert curve(study_of(noise_multiplier=0.5, dp_clip=1.0))[-1] < plain[-1] - 0.2


def test_study_without_privacy_is_written_as_before_and_with_it_comes_back():
    assert (
        not {"dp", "noise_multiplier", "dp_clip", "delta"}
        & study_of(dp="off", noise_multiplier=None, dp_clip=None).to_dict().keys()
    )
    assert Study.from_dict(study_of().to_dict()) == study_of()


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"dp": "distributed"}, "--dp"),
        ({"noise_multiplier": None}, "--noise-multiplier"),
        ({"noise_multiplier": 0.0}, "--noise-multiplier"),
        ({"dp_clip": None}, "--dp-clip"),
        ({"delta": 0.0}, "--delta"),
        ({"strategy": "fedavg-adam"}, "--strategy"),
        ({"strategy": "pfedme", "private": "none", "learning_rate": 0.1, "proximity": 1.0}, "--strategy"),
        ({"norm_bound": "auto:2"}, "--norm-bound"),
        ({"dp": "off"}, "--noise-multiplier"),
    ],
)
def test_terms_that_make_no_sense_are_refused_with_the_option(change, option):
    with pytest.raises(ConfigError, match=option):
        study_of(**change)


def test_model_whose_tracked_statistics_travel_is_refused():
    with pytest.raises(UsageError, match="running_mean"):
        simulate(study_of(private="affine"))
