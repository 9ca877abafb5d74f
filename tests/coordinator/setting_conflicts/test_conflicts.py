"""The tables of settings that exclude each other: each conflict is found by settings that have it, and by no defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedpatch.coordinator.setting_conflicts.carried_work import CARRIED_WORK, NO_CARRIED_WORK
from fedpatch.coordinator.setting_conflicts.conflict import Conflict, conflicts_of
from fedpatch.coordinator.setting_conflicts.control_variates import CONTROL_VARIATES
from fedpatch.coordinator.setting_conflicts.differential_privacy import NOISE_IN_GROUPS, WITH_NOISE, WITHOUT_NOISE
from fedpatch.coordinator.setting_conflicts.evaluate_rounds import EVALUATE_ROUNDS
from fedpatch.coordinator.setting_conflicts.masked_groups import GROUPS, NOISE_OF_DEVICES, SINGLE_UPDATES, UNMASKED
from fedpatch.coordinator.setting_conflicts.rounds_and_transfer import ROUNDS_AND_TRANSFER
from fedpatch.coordinator.setting_conflicts.standbys import STANDBYS
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError

TABLES: Mapping[str, tuple[Conflict, ...]] = {
    "without noise": WITHOUT_NOISE,
    "with noise": WITH_NOISE,
    "noise in groups": NOISE_IN_GROUPS,
    "unmasked": UNMASKED,
    "single updates": SINGLE_UPDATES,
    "groups": GROUPS,
    "noise": NOISE_OF_DEVICES,
    "no carried work": NO_CARRIED_WORK,
    "carried work": CARRIED_WORK,
    "control variates": CONTROL_VARIATES,
    "evaluate rounds": EVALUATE_ROUNDS,
    "rounds": ROUNDS_AND_TRANSFER,
    "standbys": STANDBYS,
}
MASKED = {"secure": "groups"}
NOISED = {**MASKED, "dp": "distributed", "noise_multiplier": 1.7, "dp_clip": 1.0, "private": "all"}
CENTRAL = {"dp": "central", "noise_multiplier": 1.0, "dp_clip": 1.0, "strategy": "fedavg"}
CARRY = {"late": "carry"}
# Settings that have the conflict, by table, setting and other setting.
CASES: Mapping[tuple[str, str, str], Mapping[str, Any]] = {
    ("without noise", "noise_multiplier", "dp"): {"noise_multiplier": 1.0},
    ("without noise", "dp_clip", "dp"): {"dp_clip": 1.0},
    ("without noise", "max_epsilon", "dp"): {"max_epsilon": 8.0},
    ("with noise", "noise_multiplier", "dp"): {**CENTRAL, "noise_multiplier": None},
    ("with noise", "dp_clip", "dp"): {**CENTRAL, "dp_clip": None},
    ("with noise", "target_ua", "dp"): {**CENTRAL, "target_ua": 0.9},
    ("with noise", "strategy", "dp"): {**CENTRAL, "strategy": "fedavg-adam"},
    ("with noise", "aggregate", "dp"): {**CENTRAL, "aggregate": "centred"},
    ("noise in groups", "dp", "secure"): {**CENTRAL, "dp": "distributed"},
    ("unmasked", "encoding", "secure"): {"encoding": "masked-u8"},
    ("single updates", "strategy", "secure"): {**MASKED, "strategy": "fedavg-adam"},
    ("single updates", "norm_bound", "secure"): {**MASKED, "norm_bound": "auto:2"},
    ("single updates", "max_num_examples", "secure"): {**MASKED, "max_num_examples": "100"},
    ("single updates", "aggregate", "secure"): {**MASKED, "aggregate": "trimmed:0.2"},
    ("single updates", "dp", "secure"): {**MASKED, **CENTRAL},
    ("groups", "encoding", "secure"): {**MASKED, "encoding": "fp32"},
    ("groups", "encoding", "group_size"): {**MASKED, "group_size": 64, "encoding": "masked-u8"},
    ("groups", "min_group", "group_size"): {**MASKED, "group_size": 8, "min_group": 9},
    ("groups", "colluders", "threshold"): {**MASKED, "colluders": 21},
    ("noise", "encoding", "dp"): {**NOISED, "encoding": "masked-u8"},
    ("noise", "clip", "dp"): {**NOISED, "clip": 1.0},
    ("noise", "weight_cap", "dp"): {**NOISED, "weight_cap": 10},
    ("no carried work", "max_staleness", "late"): {"max_staleness": 5},
    ("no carried work", "staleness_power", "late"): {"staleness_power": 0.0},
    ("no carried work", "concurrency", "late"): {"concurrency": 5},
    ("carried work", "late", "secure"): {**CARRY, **MASKED},
    ("carried work", "late", "dp"): {**CARRY, **CENTRAL},
    ("carried work", "aggregate", "late"): {**CARRY, "aggregate": "centred"},
    ("carried work", "concurrency", "quorum_updates"): {**CARRY, "quorum_updates": 10, "concurrency": 5},
    ("carried work", "concurrency", "min_cohort"): {**CARRY, "min_cohort": 10, "concurrency": 5},
    ("control variates", "norm_bound", "strategy"): {"strategy": "scaffold", "norm_bound": "clip:2"},
    ("control variates", "max_num_examples", "strategy"): {"strategy": "scaffold", "max_num_examples": "auto:10"},
    ("control variates", "late", "strategy"): {"strategy": "scaffold", **CARRY},
    ("evaluate rounds", "evaluate_every", "secure"): {"evaluate_every": 5, **MASKED},
    ("evaluate rounds", "evaluate_every", "dp"): {"evaluate_every": 5, **CENTRAL},
    ("evaluate rounds", "evaluate_every", "late"): {"evaluate_every": 5, **CARRY},
    ("rounds", "max_devices", "devices"): {"max_devices": 3, "devices": 4},
    ("rounds", "max_devices", "min_cohort"): {"max_devices": 3, "min_cohort": 4},
    ("rounds", "recruit_deadline_s", "deadline_s"): {"recruit_deadline_s": 5.0, "deadline_s": 5.0},
    ("rounds", "epochs", "steps"): {"epochs": 0},
    ("rounds", "upload_window", "upload_slots"): {"upload_window": 101, "upload_slots": 5},
    ("rounds", "chunk_kib", "max_model_mib"): {"chunk_kib": 8, "max_model_mib": 2048},
    ("standbys", "state", "standby"): {"standby": True, "blobs": "file:///shared"},
    ("standbys", "blobs", "standby"): {"standby": True, "state": "postgresql://me@localhost/fleet"},
}


def test_each_conflict_has_settings_that_show_it():
    kept = [(name, one.setting, other) for name, table in TABLES.items() for one in table for other in one.others]
    assert sorted(kept) == sorted(CASES)


@pytest.mark.parametrize("key", CASES, ids=" ".join)
def test_conflict_is_a_problem_of_the_setting_that_it_names(key):
    table, setting, other = key
    [conflict] = [one for one in TABLES[table] if (one.setting, *one.others) == (setting, other)]
    flags = CASES[key]
    values = {**vars(RunSettings()), **flags}
    fitting = {name: value for name, value in RunSettings.fit(values).items() if name not in flags}
    text = conflict.text.format(s=RunSettings(**{**values, **fitting}))
    with pytest.raises(ConfigError) as caught:
        load(RunSettings, file=None, environ={}, flags=flags)
    [problem] = [one for one in caught.value.problems if one.endswith(text)]
    named = f"--{setting.replace('_', '-')}" if flags.get(setting) is not None else setting
    assert problem.startswith(f"{named}: ")


def test_default_settings_have_no_conflict():
    assert conflicts_of(RunSettings(), [one for table in TABLES.values() for one in table]) == []
