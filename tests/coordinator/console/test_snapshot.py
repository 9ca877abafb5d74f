"""Messages to a page: first the whole snapshot, then only changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.console.documents import round_row, settings_rows
from fedpatch.coordinator.console.feed import with_rounds
from fedpatch.coordinator.console.snapshot import (
    Cursor,
    Snapshot,
    events_since,
    with_devices,
    with_live,
    with_runs,
)
from fedpatch.coordinator.console.words import STATE_WORDS, reason_words
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, RefuseReason
from tests.coordinator.report.report_runs import RECORDS, info, record


def _events(data: bytes) -> list[tuple[str, Any]]:
    parts = [part.split("\n") for part in data.decode("ascii").split("\n\n") if part]
    return [(name.removeprefix("event: "), json.loads(text.removeprefix("data: "))) for name, text in parts]


def _device(name: str, **changes: Any) -> dict[str, Any]:
    return {"fleet": "lab", "id": name, **changes}


def _round(number: int, snapshot: Snapshot, *, whole: bool = False) -> Snapshot:
    added = [record(number)]
    return with_rounds(snapshot, "r", [*snapshot.records, *added], fleet="lab", whole=whole, added=added)


def test_new_page_gets_everything_and_then_nothing():
    snapshot = _round(1, with_devices(with_runs(Snapshot(), [{"id": "r"}]), [_device("a")]))
    data, cursor = events_since(Cursor(), snapshot)
    assert [name for name, _ in _events(data)] == ["live", "runs", "rounds", "fleet"]
    assert events_since(cursor, snapshot) == (b"", cursor)


def test_page_gets_only_the_round_that_was_added():
    first = _round(1, Snapshot())
    cursor = events_since(Cursor(), first)[1]
    [(name, content)] = _events(events_since(cursor, _round(2, first))[0])
    assert (name, content["whole"], [row["n"] for row in content["rows"]]) == ("rounds", False, [2])


def test_page_gets_all_rounds_when_they_were_replaced():
    first = _round(1, Snapshot())
    cursor = events_since(Cursor(), first)[1]
    [(_, content)] = _events(events_since(cursor, _round(1, Snapshot(rounds_since=first.rounds_since), whole=True))[0])
    assert content["whole"]


def test_page_gets_only_devices_that_changed():
    first = with_devices(Snapshot(), [_device("a"), _device("b")])
    cursor = events_since(Cursor(), first)[1]
    second = with_devices(first, [_device("a"), _device("b", online=True)])
    [(_, content)] = _events(events_since(cursor, second)[0])
    assert (content["whole"], [row["id"] for row in content["rows"]]) == (False, ["b"])


def test_page_begins_anew_when_a_device_is_gone():
    first = with_devices(Snapshot(), [_device("a"), _device("b")])
    cursor = events_since(Cursor(), first)[1]
    [(_, content)] = _events(events_since(cursor, with_devices(first, [_device("b")]))[0])
    assert (content["whole"], [row["id"] for row in content["rows"]]) == (True, ["b"])


def test_same_content_makes_no_event():
    first = with_devices(with_runs(Snapshot(), [{"id": "r"}]), [_device("a")])
    assert with_devices(with_runs(first, [{"id": "r"}]), [_device("a")]) is first
    later = with_live(first, {"status": None}, news=False)
    assert events_since(events_since(Cursor(), first)[1], later)[0] == b""


@given(RECORDS)
def test_any_record_is_one_line_of_json(one):
    data, _ = events_since(Cursor(), with_rounds(Snapshot(), "r", [one], fleet="lab", whole=True, added=[one]))
    assert [name for name, _ in _events(data)] == ["live", "runs", "rounds", "fleet"]


@given(st.text())
def test_no_text_ends_an_event_early(text):
    snapshot = replace(Snapshot(), live={"line": text})
    assert dict(_events(events_since(Cursor(), snapshot)[0]))["live"] == {"line": text}


def test_every_code_of_the_wire_has_words():
    for kind in (Condition, DeclineReason, FailReason, RefuseReason):
        assert [code for code in kind if reason_words(code) == code.replace("_", " ")] == []
    assert set(STATE_WORDS) == set(State)
    assert reason_words("of_a_later_version") == "of a later version"


def test_settings_of_a_run_have_no_secret():
    rows = dict(settings_rows(info(settings={"password": "hidden", "rounds": 3, "target_ua": None})))
    assert rows["rounds"] == "3" and rows["target_ua"] == "not set" and "password" not in rows


def test_notes_of_a_round_have_reasons_in_words_once_and_the_privacy_once():
    one = record(4, decline_reasons={"too_hot": 2}, privacy={"epsilon": 1.5, "delta": 1e-5, "rounds": 4.0})
    notes = round_row(one)["notes"]
    assert notes.startswith("declined: 2 × it is too hot; ") and notes.count("1.5") == 1


def test_evaluate_round_is_marked_and_a_training_round_is_not():
    assert round_row(record(4, outcome="evaluated"))["evaluation"]
    assert "evaluation" not in round_row(record(4))


def test_spread_of_a_round_is_from_the_worst_to_the_best_device():
    row = round_row(record(4))
    assert (row["worst"], row["ua"], row["best"]) == (0.3875, 0.775, 0.775)
    error = round_row(record(4, metric_goal="min", user_accuracies={"a": 0.2, "b": None, "c": 0.4}))
    assert error["best"] == 0.2
