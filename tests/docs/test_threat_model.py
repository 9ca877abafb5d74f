"""docs/explanation/threat-model.md has the number of tested attacks, and the table of offences."""

from __future__ import annotations

import re

import pytest

from fedpatch.coordinator.cohort.offences import NOT_OFFENCES, OFFENCES
from fedpatch.coordinator.guard.ingress_filter import (
    BYTES_AT_ONCE,
    BYTES_PER_S,
    MAX_WAITING_BYTES,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_REQUEST,
    MESSAGES_PER_S,
)
from fedpatch.coordinator.rounds.upload_scheduler import STALL_S
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.tensors.arrays import base_name
from tests.attacks.table import KINDS
from tests.docs import what_stays
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text("utf-8")


@pytest.mark.parametrize(("kind", "attacks"), KINDS.items(), ids=list(KINDS))
def test_page_has_the_number_of_attacks_of_each_kind(kind, attacks):
    assert f"| {kind} | {len({one.name for one in attacks})} |" in PAGE
    assert len({one.name for one in attacks}) == len(attacks)


@pytest.mark.medium
def test_the_table_of_what_stays_is_that_of_a_bundled_tasks_schema():
    """For each policy and tensor; `python -m tests.docs.what_stays` prints the table. Moments stay where their tensors stay."""
    assert what_stays.markdown() in PAGE
    for policy in what_stays.POLICIES:
        stays, travels = what_stays.split(policy)
        model = {name for name in stays if name in what_stays.schema()}
        assert stays == {name for name in stays | travels if base_name(name) in model}
    stays, travels = what_stays.split(RunSettings().private)
    assert {"bn1.weight", "bn1.bias", "bn1.weight:exp_avg"} <= stays
    assert {"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"} <= travels


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "docs/reference/preferences.md"])
def test_other_pages_point_to_the_one_table(page):
    """The pages name no other default of private tensors."""
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert "threat-model.md#what-stays-on-a-device" in text
    assert not re.search(r"batch-norm layers(,| by default)", text)


def test_page_lists_each_offence_with_its_meaning():
    for (what, reason), words in OFFENCES.items():
        assert f"| {'' if what == 'refused' else f'{what}: '}`{reason}` | {words} |" in PAGE


def test_page_names_each_reason_that_is_no_offence():
    named = PAGE.partition("Never counted")[2].partition("### Limits")[0]
    assert set(re.findall(r"`(\w+)`", named)) == {str(reason) for _, reason in NOT_OFFENCES}


def test_limits_on_the_page_are_those_of_the_program():
    for words in (
        f"{MESSAGES_AT_ONCE:g} at once, {MESSAGES_PER_S:g} a second; {MESSAGES_PER_REQUEST:g} more",
        f"{BYTES_AT_ONCE / 2**20:g} MiB at once, {BYTES_PER_S / 1024:g} KiB a second",
        f"{MAX_WAITING_BYTES // 2**20} MiB",
        f"{STALL_S:g} s without",
    ):
        assert words in PAGE, words
