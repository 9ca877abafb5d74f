"""The policies `norms` and `head` of a run: the coordinator converts them to names, which devices of any version understand."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.experiment.options import make_study


@pytest.mark.parametrize(("private", "names"), [("head", "names:fc3.*"), ("norms", "names:bn1.bias,bn1.weight")])
def test_policy_of_a_run_and_of_a_simulation_are_the_same_names(private, names):
    prepared = prepare(RunSettings(task="digits", private=private))
    study = make_study(task=find_task("digits"), task_ref="digits", clients=2, strategy="fedavg", private=private)
    assert str(prepared.policy) == study.private == names
    assert not prepared.private_names & set(prepared.public.names)
