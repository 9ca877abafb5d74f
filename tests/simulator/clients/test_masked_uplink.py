"""The uplink of a masked study gives the same bits as devices' masked vectors, summed and opened by the coordinator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.masked_mean import masked_mean
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.training.masked_update import unmasked_blob
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError
from fedpatch.shared.masking.device_vector import weight_class
from fedpatch.shared.masking.masked_blob import MaskedUpdate, mask_blob, read_masked_blob
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.simulator.clients.masked_uplink import MaskedUplink, groups_of
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import Study, client_id
from tests.simulator.studies import simulation_of, study_of, without_seconds
from tests.support.masked_group import PlayedGroup

SCHEMA = Schema((TensorSpec("w", (9, 7), "float32", "weight"), TensorSpec("running_var", (7,), "float32", "stats")))
CLIENTS = 12
EXAMPLES = [10 + 5 * client for client in range(CLIENTS)]
BASE = {"w": np.full((9, 7), 0.5, "f4"), "running_var": np.ones(7, "f4")}


def test_model_reaches_the_mean_of_the_goals_without_error_feedback():
    """The rounding is unbiased, so nothing that one round lacks has to be in the next one."""
    study = study_of(secure="groups", group_size=8, clients=CLIENTS)
    schema = Schema((TensorSpec("w", (30, 40), "float32", "weight"),))
    goals = np.random.default_rng(7).normal(0, 1, (CLIENTS, 30, 40)).astype("f4")
    model, wanted = {"w": np.zeros((30, 40), "f4")}, goals.mean(axis=0)
    uplink = MaskedUplink(study, schema, model, [100] * CLIENTS, MetricTerms())
    alike = {client: reports()[0] for client in range(CLIENTS)}
    for number in range(1, 41):
        seeds = {client: 1000 * number + client for client in range(CLIENTS)}
        model = uplink.mean(
            number,
            range(CLIENTS),
            base=model,
            update_of=lambda client: {"w": goals[client]},
            reports=alike,
            seeds=seeds,
        )
    assert np.sqrt(np.mean((model["w"] - wanted) ** 2)) < 0.3


def test_values_that_are_not_finite_and_never_change_stay_while_others_move():
    """Such as the mask of causal attention."""
    study = study_of(secure="groups", group_size=8, clients=CLIENTS)
    schema = Schema((*SCHEMA.specs, TensorSpec("mask", (3,), "float32", "buffer")))
    model = BASE | {"mask": np.array([0, -np.inf, np.nan], "f4")}
    goal = {"w": BASE["w"] + 1, "running_var": BASE["running_var"], "mask": model["mask"]}
    uplink = MaskedUplink(study, schema, model, EXAMPLES, MetricTerms())
    for number in (1, 2):
        model = uplink.mean(
            number,
            range(CLIENTS),
            base=model,
            update_of=lambda _: goal,
            reports=reports(),
            seeds={client: 100 * number + client for client in range(CLIENTS)},
        )
        np.testing.assert_array_equal(model["mask"], goal["mask"])
    assert (model["w"] > BASE["w"]).all()


def updates_of(round_number):
    rng = np.random.default_rng(round_number)
    return [
        {name: value + rng.normal(0, 0.05, value.shape).astype("f4") for name, value in BASE.items()}
        for _ in range(CLIENTS)
    ]


def reports():
    return {
        client: UpdateReport("00" * 32, EXAMPLES[client], 3, 1.5, 0.5 + client / 100, 0.9, 0.1, 0.1)
        for client in range(CLIENTS)
    }


def test_mean_has_the_bits_of_masked_groups_of_devices():
    """Three rounds; the devices' sums use real keys, masks and shares."""
    study = study_of(secure="groups", group_size=8, clients=CLIENTS)
    uplink = MaskedUplink(study, SCHEMA, BASE, EXAMPLES, MetricTerms())
    for number in (1, 2, 3):
        updates = updates_of(number)
        layout = VectorLayout(SCHEMA, uplink._terms(number, CLIENTS))
        blobs = {
            client: unmasked_blob(
                layout.terms,
                SCHEMA,
                model=BASE,
                update=updates[client],
                report=replace(reports()[client], num_examples=weight_class(EXAMPLES[client])),
                metric=MetricTerms(),
                seed=100 * number + client,
            )
            for client in range(CLIENTS)
        }
        groups, masked = masked_by_devices(list(groups_of(range(CLIENTS), 8)), blobs, layout)
        deployed = masked_mean(groups, masked.__getitem__, layout=layout, schema=SCHEMA, base=BASE)
        found = uplink.mean(
            number,
            range(CLIENTS),
            base=BASE,
            update_of=updates.__getitem__,
            reports=reports(),
            seeds={client: 100 * number + client for client in range(CLIENTS)},
        )
        for name, expected in deployed.mean.items():
            np.testing.assert_array_equal(found[name], expected, err_msg=name)


def masked_by_devices(members, blobs, layout):
    """The open groups and the masked updates, computed by the devices' and the coordinator's code."""
    groups, masked = [], {}
    for number, clients in enumerate(members):
        size = len(clients)
        group = PlayedGroup.of(size, seed=number)
        everybody = frozenset(range(size))
        group.share()
        group.distribute(everybody)
        for device, client in zip(group.devices, clients, strict=True):
            blob = mask_blob(blobs[client], group.context, device.rounds.masks(), 8)
            masked[client_id(client)] = read_masked_blob(blob, layout)
        opening = group.open(everybody, everybody, group.reveals(everybody, everybody))
        groups.append(OpenGroup(tuple(map(client_id, clients)), opening.masks))
    assert all(isinstance(update, MaskedUpdate) for update in masked.values())
    return groups, masked


@pytest.mark.parametrize(
    ("clients", "size", "sizes"),
    [(10, 32, [10]), (33, 32, [17, 16]), (64, 32, [32, 32]), (9, 8, [9]), (20, 8, [10, 10])],
)
def test_simulated_groups_and_grid_equal_those_of_a_run(clients, size, sizes):
    """A run forms no group below min_group, which is 8 by default, but larger ones."""
    groups = list(groups_of(range(clients), size))
    assert [len(group) for group in groups] == sizes
    assert [client for group in groups for client in group] == list(range(clients))
    settings = load(RunSettings, file=None, environ={}, flags={"secure": "groups", "group_size": size})
    uplink = MaskedUplink(study_of(secure="groups", group_size=size), SCHEMA, BASE, EXAMPLES, MetricTerms())
    assert uplink._terms(1, clients).group_max == min(settings.largest_group, clients)


def small_study(**changes):
    task = find_task("tests.simulator.small_task:TASK")
    terms: dict[str, Any] = {
        "clients": 8,
        "strategy": "fedavg",
        "data": "client={index},of={count},seed={seed},used=10",
        "rounds": 4,
        "learning_rate": 0.1,
        "secure": "groups",
    }
    return make_study(task=task, task_ref="tests.simulator.small_task:TASK", **(terms | changes))


def test_masked_study_continues_where_it_stopped(tmp_path):
    """It uses the scale of the earlier rounds."""
    study = small_study()
    whole = simulate(study)
    rounds = iter([False, False, False, True])
    simulate(study, saved=tmp_path, stopped=lambda: next(rounds))
    resumed = simulate(study, saved=tmp_path)
    assert without_seconds(resumed) == without_seconds(whole)


def test_masked_round_leaves_no_update_in_the_folder_of_updates():
    study = small_study()
    simulation = simulation_of(study, find_task(study.task))
    assert simulation._spool is not None
    folder = Path(simulation._spool.name)
    for _ in range(3):
        simulation.step()
        assert list(folder.iterdir()) == []
    simulation.close()


def test_terms_of_masked_groups_are_in_the_json_only_where_there_are_any():
    study = small_study()
    assert Study.from_dict(study.to_dict()) == study
    assert study.to_dict()["secure"] == "groups"
    assert not {"secure", "clip", "group_size"} & replace(study, secure="off").to_dict().keys()


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"secure": "on"}, "--secure"),
        ({"strategy": "fedavg-adam"}, "fedavg-adam cannot be summed"),
        ({"norm_bound": "auto:2"}, "--norm-bound"),
        ({"max_num_examples": "100"}, "--max-num-examples"),
        ({"group_size": 7}, "--group-size: 7"),
        ({"group_size": 65}, "--group-size: 65"),
        ({"clip": 0.0}, "--clip: 0.0"),
        ({"clients": 7}, "a round has 7 clients"),
    ],
)
def test_option_unsupported_by_masked_groups_is_refused(changes, option):
    with pytest.raises(ConfigError, match=option):
        small_study(**changes)
