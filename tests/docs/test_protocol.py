"""The protocol document has every message, field and word of the wire, and no others."""

from __future__ import annotations

import dataclasses
import re
from enum import StrEnum
from typing import get_args, get_type_hints

import pytest

from fedpatch.coordinator.observability.status_publisher import LEAST_S, REPEAT_S
from fedpatch.coordinator.rounds.chunk_resends import REPUBLISH_S
from fedpatch.coordinator.rounds.participant_transitions import TABLE, ParticipantEvent, State
from fedpatch.coordinator.rounds.repeated_requests import REINVITE_S
from fedpatch.coordinator.rounds.upload_scheduler import UPLOAD_IDLE_S
from fedpatch.device_agent.telemetry.vitals import CHANGE_BATTERY, CHANGE_C
from fedpatch.device_agent.telemetry.vitals import LEAST_S as LEAST_S_OF_VITALS
from fedpatch.device_agent.telemetry.vitals import REPEAT_S as REPEAT_S_OF_VITALS
from fedpatch.device_agent.training.local_trainer import CLIENT_OPTIMIZERS
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.tensors.levels import _OCTAVE
from fedpatch.shared.wire import messages
from fedpatch.shared.wire.chunk_download import ASK_QUIET_S
from fedpatch.shared.wire.chunk_upload import GRANTED_QUIET_S, OFFER_QUIET_S
from fedpatch.shared.wire.chunks import CHUNK_OVERHEAD_BYTES, MAX_QUIET_S
from fedpatch.shared.wire.codec import BODY_TYPES, MAX_MESSAGE_BYTES, _Frame
from fedpatch.shared.wire.features import (
    COORDINATOR_FEATURES,
    DEVICE_FEATURES,
    MASKED_FEATURE,
    MEMBERS_FEATURE,
    SHARED_ID_FEATURE,
    SIGNED_FEATURE,
    SUMS_FEATURE,
    URL_FEATURE,
)
from fedpatch.shared.wire.masking_messages import GroupMember, MaskingKeys, SecureTerms
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    MAX_CHUNKS,
    JobStatus,
    Manifest,
    ModelDelta,
    TaskCapability,
    TrainPlan,
    UpdateReport,
)
from fedpatch.shared.wire.plan_terms import CONTROL, PersonalCopy, TrainPhase
from fedpatch.shared.wire.privacy_messages import PrivacyTerms
from fedpatch.shared.wire.reason_codes import RefuseReason
from fedpatch.shared.wire.run_status import DeviceStatus, ReasonCount, RoundStatus, StateCount
from fedpatch.shared.wire.vitals import LastRound
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "reference" / "protocol.md").read_text("utf-8")
WITHIN = (
    Manifest,
    ModelDelta,
    TrainPlan,
    TrainPhase,
    PersonalCopy,
    PrivacyTerms,
    TaskCapability,
    LastRound,
    JobStatus,
    UpdateReport,
)
WITHIN_MASKED = (SecureTerms, MaskingKeys, GroupMember)
WITHIN_STATUS = (DeviceStatus, StateCount, RoundStatus, ReasonCount)
SECTIONS: dict[str, type] = BODY_TYPES | {kind.__name__: kind for kind in (*WITHIN, *WITHIN_MASKED, *WITHIN_STATUS)}


def section(name: str) -> str:
    """The text under a heading."""
    found = re.search(rf"^### `{name}`$(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section on {name}"
    return found[1]


def fields_in(text: str) -> list[str]:
    """The names of the items "name, name (type): meaning"."""
    items = re.findall(r"^- (`[^(]+`) \(", text, re.MULTILINE)
    return [name for item in items for name in re.findall(r"`(\w+)`", item)]


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_every_field_is_documented(name):
    assert fields_in(section(name)) == [field.name for field in dataclasses.fields(SECTIONS[name])]


def test_nothing_else_is_documented():
    assert sorted(re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE)) == sorted(SECTIONS)


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_every_word_is_documented(name):
    for field, hint in get_type_hints(SECTIONS[name]).items():
        for kind in get_args(hint) or (hint,):
            if isinstance(kind, type) and issubclass(kind, StrEnum) and "as in" not in meaning(name, field):
                assert set(kind) <= set(re.findall(r"`(\w+)`", meaning(name, field))), field


def meaning(name: str, field: str) -> str:
    """The text after the type of a field in its list item."""
    line = next(line for line in section(name).splitlines() if line.startswith("- ") and field in fields_in(line))
    return line.partition("): ")[2]


def test_the_envelope_is_documented():
    envelope = TEXT.partition("## Envelope")[2].partition("\n##")[0]
    assert fields_in(envelope) == [field.name for field in dataclasses.fields(_Frame)]


def test_each_feature_is_documented_with_the_side_that_lists_it():
    """The table of additions to version 1 has each feature."""
    versions = TEXT.partition("### Versions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (device|coordinator) \|", versions, re.MULTILINE)
    documented = {(word, side) for words, side in rows for word in re.findall(r"`([^`]+)`", words)}
    assert documented == {
        (one, "device")
        for one in (
            *DEVICE_FEATURES,
            MASKED_FEATURE,
            SIGNED_FEATURE,
            SUMS_FEATURE,
            URL_FEATURE,
            SHARED_ID_FEATURE,
        )
    } | {(one, "coordinator") for one in (*COORDINATOR_FEATURES, MEMBERS_FEATURE)}


def test_the_rounds_table_is_the_one_that_is_played():
    found = re.search(r"^ +(accept .*?)\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    events = [ParticipantEvent(word) for word in found[1].split()]
    lines = [line.split() for line in found[2].splitlines()]
    table = {
        (State(state), event): State(word)
        for state, *words in lines
        for event, word in zip(events, words, strict=True)
        if word != "-"
    }
    assert table == {pair: state for pair, state in TABLE.items() if state is not pair[0]}
    assert {state for state, *_ in lines} == set(State)
    assert set(events) == set(ParticipantEvent)


def test_figures_are_those_of_the_code():
    assert LEAST_S == 1.0
    for figure in (
        f"{MAX_MESSAGE_BYTES:,} bytes",
        f"1 to {MAX_CHUNKS:,}",
        f"{CHUNK_OVERHEAD_BYTES} bytes of header",
        f"every {REINVITE_S:g} s",
        f"within {REPUBLISH_S:g} s",
        f"silent for {UPLOAD_IDLE_S:g} s",
        f"up to {MAX_QUIET_S:g} s",
        f"up to {GRANTED_QUIET_S:g} s after",
        f"offers again after {OFFER_QUIET_S:g} s",
        f"nothing new has come for {ASK_QUIET_S:g} s",
        *map(str, _OCTAVE[:-1]),
        f"then every {REPEAT_S_OF_VITALS:g} s, and where",
        f"no more than one in {LEAST_S_OF_VITALS:g} s.",
        f"the temperature by {CHANGE_C:g} °C or the battery by {CHANGE_BATTERY:.0%}".replace("%", " %"),
        f"a second at most, and every {REPEAT_S:g} s even",
        f"Version {messages.PROTOCOL_VERSION}",
        ", ".join(f"`{encoding}`" for encoding in ENCODINGS[:-1]),
    ):
        assert figure in TEXT


def test_client_optimizers_and_moments_are_those_that_a_device_knows():
    assert set(re.findall(r"`(\w+)`", meaning("TrainPlan", "client_optimizer"))) == set(CLIENT_OPTIMIZERS)
    assert set(re.findall(r"`(\w+)`", meaning("TrainPlan", "moments"))) == {*MOMENTS, CONTROL}


def test_refusals_of_an_update_that_has_come_are_documented():
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"\|([^|]*)\|$", checks(), re.MULTILINE))))
    late = {"late", "stale_epoch", "not_invited", "already_committed", "quarantined", "stale", "superseded"}
    assert documented == {str(reason) for reason in RefuseReason} - late


def checks() -> str:
    """The rows of the table of checks of an update's bytes."""
    return TEXT.partition("| check | `refused` |\n|---|---|\n")[2].partition("\n\n")[0]
