"""Settings of a masked run: fitting defaults, and conflicts that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.pki.masking_authority import masking_authorities
from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load, public_values
from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.wire.masking_messages import MAX_GRID_TENSORS
from tests.system.oracle_task import TASK


def loaded(**flags: object) -> RunSettings:
    return load(RunSettings, file=None, environ={}, flags=flags)


def problems(**flags: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(**flags)
    return list(caught.value.problems)


def test_secure_alone_takes_values_that_fit():
    settings = loaded(secure="groups")
    assert (settings.strategy, settings.norm_bound, settings.max_num_examples) == ("fedavg", "off", "off")
    assert (settings.encoding, settings.model_encoding, settings.devices) == ("masked-u8", "delta-int8", 8)


def test_group_beyond_the_grid_of_8_bits_takes_16():
    assert loaded(secure="groups", group_size=43).encoding == "masked-u16"
    assert loaded(secure="groups", group_size=42).encoding == "masked-u8"


def test_values_that_were_set_stay():
    settings = loaded(secure="groups", strategy="fedadam", devices=12, encoding="masked-u16")
    assert (settings.strategy, settings.devices, settings.encoding) == ("fedadam", 12, "masked-u16")


def test_demo_keeps_its_number_of_devices():
    assert load(DemoSettings, file=None, environ={}, flags={"secure": "groups"}).devices == 10


def test_settings_of_a_masked_run_can_be_loaded_again_by_a_resume():
    settings = loaded(secure="groups")
    assert loaded(**public_values(settings)) == settings


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("strategy", "fedavg-adam", "second moments"),
        ("norm_bound", "auto:2", "set clip instead"),
        ("norm_bound", "reject:3", "set clip instead"),
        ("max_num_examples", "100", "weight_cap"),
        ("encoding", "delta-int8", "masked-u8"),
        ("encoding", "fp32", "masked-u8"),
        ("group_size", 7, "is below 8"),
        ("group_size", 65, "is above 64"),
        ("threshold", "all", "half, two_thirds"),
        ("min_group", 7, "is below 8"),
        ("min_group", 33, "is above 32"),
    ],
)
def test_setting_that_does_not_fit_is_refused_with_the_remedy(name, value, words):
    [problem] = problems(secure="groups", **{name: value})
    assert problem.startswith(f"--{name.replace('_', '-')}: ")
    assert words in problem


def test_masked_encoding_of_8_bits_for_a_large_group_is_refused():
    [problem] = problems(secure="groups", group_size=64, encoding="masked-u8")
    assert "masked-u16" in problem


def test_smallest_group_above_the_largest_is_refused():
    [problem] = problems(secure="groups", group_size=8, min_group=9)
    assert "is above group_size = 8" in problem


def test_smallest_group_is_waited_for_and_merged_groups_fit_the_encoding():
    settings = loaded(secure="groups", min_group=24)
    assert (settings.devices, settings.encoding) == (24, "masked-u16")


def build_many_tensors() -> nn.Module:
    return nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(MAX_GRID_TENSORS + 1))


MANY = replace(TASK, build_model=build_many_tensors)


def test_masked_run_is_refused_where_no_request_can_hold_the_ranges_of_its_tensors():
    """No device could read such a request, so each round would fail without a reason."""
    terms = {"task": f"{__name__}:MANY", "private": "none"}
    assert len(prepare(loaded(**terms)).public) == MAX_GRID_TENSORS + 1
    with pytest.raises(UsageError, match=r"1025 public tensors .* allow 1024; keep more of them on the devices"):
        prepare(loaded(**terms, secure="groups"))


def test_masked_encoding_without_secure_is_refused():
    [problem] = problems(encoding="masked-u8")
    assert "secure = groups" in problem


def test_members_sign_their_keys_unless_unsigned_masks_are_chosen_by_name(tmp_path):
    assert loaded(secure="groups").threshold == "two_thirds"
    assert loaded(secure="groups", threshold="half").threshold == "half"
    assert load(DemoSettings, file=None, environ={}, flags={"secure": "groups"}).threshold == "half"
    with pytest.raises(UsageError, match=r"set ca_file, or choose threshold = half, which hides .* honest coordinator"):
        masking_authorities(loaded(secure="groups"))
    assert masking_authorities(loaded(secure="groups", threshold="half")) is None


NOISE = {"secure": "groups", "dp": "distributed", "noise_multiplier": 1.7, "dp_clip": 1.0, "private": "all"}


def test_noise_of_the_devices_takes_16_bits():
    assert loaded(**NOISE).encoding == "masked-u16"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dp": "central"}, "use distributed"),
        ({"secure": "off"}, "set secure = groups"),
        ({"encoding": "masked-u8"}, "use masked-u16"),
        ({"clip": 1.0}, "dp_clip takes its place"),
        ({"weight_cap": 10}, "each device counts alike"),
        ({"noise_multiplier": 500.0}, "values of 16 bits"),
        ({"target_ua": 0.9}, "raw user accuracies"),
    ],
)
def test_settings_that_noise_of_the_devices_does_not_know_are_refused(change, words):
    assert any(words in problem for problem in problems(**{**NOISE, **change}))


def test_rule_that_needs_single_updates_is_refused_with_a_remedy():
    found = problems(secure="groups", aggregate="trimmed:0.2")
    assert any("centred, which limits groups" in problem for problem in found)


def test_centred_goes_with_masked_groups():
    assert loaded(secure="groups", aggregate="centred:2").aggregate == "centred:2"
