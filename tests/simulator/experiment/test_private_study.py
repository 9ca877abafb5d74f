"""Studies with differential privacy: the coordinator's arithmetic, with noise from the seed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.simulator.clients.masked_uplink import MaskedUplink
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
    assert curve(study_of(dp_clip=20.0))[1] == pytest.approx(plain[1], abs=0.1)
    assert curve(study_of(noise_multiplier=0.5, dp_clip=1.0))[1] < plain[1] - 0.2


def test_study_without_privacy_is_written_as_before_and_with_it_comes_back():
    assert (
        not {"dp", "noise_multiplier", "dp_clip", "delta"}
        & study_of(dp="off", noise_multiplier=None, dp_clip=None).to_dict().keys()
    )
    assert Study.from_dict(study_of().to_dict()) == study_of()


MASKED: dict[str, Any] = {"dp": "distributed", "secure": "groups", "clients": 16, "group_size": 8}


@pytest.mark.parametrize(("count", "spread"), [(16, 2 * 8 / 5), (12, 12 / 7)])
def test_noise_of_the_devices_has_the_size_that_the_groups_add(count, spread):
    """The updates change nothing, so their mean is only noise.

    16 clients are two groups of eight, whose threshold is five. 12 are one group, as in a run, whose threshold is seven.
    """
    study = study_of(**{**MASKED, "noise_multiplier": 1.7, "dp_clip": 0.5, "clients": count})
    base = {"w": np.zeros(20_000, np.float32)}
    schema = Schema((TensorSpec("w", (20_000,), "float32", "weight"),))
    uplink = MaskedUplink(study, schema, base, [10] * count, MetricTerms())
    clients = range(count)
    mean = uplink.mean(
        1, clients, base=base, update_of=lambda client: base, reports={}, seeds=dict.fromkeys(clients, 0)
    )["w"]
    assert mean.std() == pytest.approx(1.7 * 0.5 * math.sqrt(spread) / count, rel=0.03)
    assert (
        uplink.mean(1, clients, base=base, update_of=lambda client: base, reports={}, seeds=dict.fromkeys(clients, 0))[
            "w"
        ].tobytes()
        == mean.tobytes()
    )


def test_study_with_noise_of_the_devices_learns_where_it_is_small():
    points = curve(study_of(**{**MASKED, "noise_multiplier": 0.01, "dp_clip": 20.0}))
    assert points[-1] > points[0] + 0.2


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
        ({"secure": "groups"}, "--dp"),
        ({**MASKED, "clip": 1.0}, "--clip"),
    ],
)
def test_terms_that_make_no_sense_are_refused_with_the_option(change, option):
    with pytest.raises(ConfigError, match=option):
        study_of(**change)


def test_model_whose_tracked_statistics_travel_is_refused():
    with pytest.raises(UsageError, match="running_mean"):
        simulate(study_of(private="affine"))
