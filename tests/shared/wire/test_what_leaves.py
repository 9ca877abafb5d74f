"""The list of fields that leave a device, beside the messages of the wire."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from msgspec import UNSET

from fedpatch.shared.wire import what_leaves
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import TaskCapability, members_field
from fedpatch.shared.wire.vitals import LastRound, Vitals
from fedpatch.shared.wire.what_leaves import DEVICE_MESSAGES, WHAT_LEAVES, sent_types, unlisted
from tests.support.sent_fields import unlisted_in
from tests.support.specs import there

GOLDEN = Path(__file__).parents[2] / "golden"


def test_list_has_each_type_and_each_field_that_a_device_can_send_and_no_other():
    assert set(WHAT_LEAVES) == sent_types()
    for kind, sent in WHAT_LEAVES.items():
        assert set(sent) == {one.name for one in fields(kind)}, kind.__name__


def test_each_field_has_a_reason_and_a_way_to_stop_it():
    assert all(one.why and one.stop for sent in WHAT_LEAVES.values() for one in sent.values())


@pytest.mark.parametrize(("count", "expected"), [(1, UNSET), (2, 2), (50, 50)])
def test_members_are_sent_by_a_relay_only(count, expected):
    assert members_field(count) == expected


@pytest.mark.parametrize("kind", [Vitals, LastRound])
def test_each_field_of_vitals_is_stopped_by_share_vitals(kind):
    assert {one.stop for one in WHAT_LEAVES[kind].values()} == {"share_vitals = false"}


def test_field_without_a_line_is_found_in_a_part_of_a_message(monkeypatch):
    shorter = {name: one for name, one in WHAT_LEAVES[TaskCapability].items() if name != "num_examples"}
    monkeypatch.setattr(what_leaves, "WHAT_LEAVES", {**WHAT_LEAVES, TaskCapability: shorter})
    assert unlisted(there()) == {"TaskCapability.num_examples"}


def test_golden_messages_of_devices_have_listed_fields_only():
    seen = set()
    for file in GOLDEN.glob("*.hex"):
        payload = bytes.fromhex(file.read_text())
        try:
            body = decode(payload).body
        except Exception:  # a chunk, or a message that no version knows
            continue
        if isinstance(body, DEVICE_MESSAGES):
            seen.add(type(body))
            assert unlisted_in(payload) == set()
    assert len(seen) >= len(DEVICE_MESSAGES) - 2


@pytest.mark.parametrize("kind", DEVICE_MESSAGES)
def test_field_without_a_line_is_found(kind, monkeypatch):
    name = fields(kind)[0].name
    shorter = {key: one for key, one in WHAT_LEAVES[kind].items() if key != name}
    monkeypatch.setattr(what_leaves, "WHAT_LEAVES", {**WHAT_LEAVES, kind: shorter})
    blank = object.__new__(kind)
    for one in fields(kind):
        object.__setattr__(blank, one.name, None)
    assert unlisted(blank) == {f"{kind.__name__}.{name}"}
