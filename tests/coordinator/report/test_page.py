"""The page of a report: tables, comparisons, CSV, and texts that must not become markup."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.pki.issued_certificates import DEVICE, Entry, Index
from fedpatch.coordinator.report.csv_export import COLUMNS, csv_text
from fedpatch.coordinator.report.incidents import recorded_incidents
from fedpatch.coordinator.report.page import MAX_DEVICES, labels, make_page, rounds_to_target
from fedpatch.coordinator.report.series import Run
from fedpatch.coordinator.rounds.device_record import Hold
from fedpatch.coordinator.rounds.round_record import RoundRecord
from tests.coordinator.report.report_runs import RUNS, info, record, run
from tests.support.examples import examples

HOSTILE = "</title><script>alert('x')</script>\"onload=\""


def _page(*runs: Run) -> str:
    return make_page(runs, 1.78e9, "0.1.0")


def _text(markup: str) -> str:
    """Return the visible text on one line, with a bar between cells and paragraphs."""
    body = re.sub(r"<style>.*?</style>", "", markup, flags=re.DOTALL)
    return unescape(re.sub(r"(<[^>]*>)+", "|", body))


def _rows(markup: str, label: str) -> list[list[str]]:
    """Return the rows of the table with this label."""
    found = re.search(rf'<div[^>]*aria-label="{label}".*?<tbody>(.*?)</tbody>', markup, re.DOTALL)
    assert found, label
    rows = re.findall(r"<tr>(.*?)</tr>", found[1])
    return [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def test_texts_of_devices_and_users_never_become_markup():
    hostile = record(
        1,
        user_accuracies={HOSTILE: 0.5},
        decline_reasons={HOSTILE: 1},
        failures={HOSTILE: 1},
        refused={HOSTILE: 1},
        failure=HOSTILE,
        metric="<b>'\"&",
    )
    page = _page(*(Run(info(f"{n}{HOSTILE}", task=HOSTILE, settings={HOSTILE: HOSTILE}), (hostile,)) for n in "ab"))
    assert "<script" not in page and "<b>" not in page and HOSTILE not in page
    assert HOSTILE in _text(page)


@pytest.mark.medium
def test_page_has_no_script_and_loads_nothing():
    page = _page(run(5), run(5, "b"))
    assert set(re.findall(r"\w+://[^\s\"]*", page)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<script|<link|<img|@import|url\((?!#)|href=\"(?!#)|\son\w+=", page)
    assert "default-src 'none'; style-src 'unsafe-inline'" in unescape(page)


def test_each_round_is_a_row_with_its_record():
    row = _rows(_page(run(2)), "Rounds")[1]
    measures = ["0.550", "0.367", "0.275", "0.550"]
    phases = ["0.10", "0.20", "0.30", "4.00", "0.50", "0.60"]
    assert row == ["2", "aggregated", "2/3", *measures, "5.7 s", *phases, "54 kB", "51 kB", "declined: unwilling 1"]


def test_declines_and_failures_are_counted_by_reason():
    records = (*run(4).records, record(5, outcome="failed", failure="quorum_missed", failures={"training": 2}, late=1))
    rows = _rows(_page(Run(info(), records)), "Declines and failures by reason")
    assert [row[:3] for row in rows] == [
        ["declined", "unwilling", "5"],
        ["failed", "training", "2"],
        ["late", "after the round", "1"],
        ["round failed", "quorum_missed", "1"],
    ]


def test_run_without_declines_has_a_sentence_instead_of_the_table():
    page = _page(Run(info(), (record(1, decline_reasons={}),)))
    assert "No device declined, failed, was refused or came late" in page


def test_accuracy_that_is_nan_is_left_out():
    records = (record(1), record(2, user_accuracies={"pi-1": math.nan, "pi-2": 0.5}))
    assert _rows(_page(Run(info(), records)), "user accuracy of each device") == [
        ["pi-1", "1", "0.050", "0.050", "0.050", "0.050"],
        ["pi-2", "2", "0.100", "0.500", "0.100", "0.500"],
    ]


@pytest.mark.parametrize(("rounds", "words"), [(120, ""), (121, "Each bar is the mean of 2 rounds")])
def test_bar_of_several_rounds_names_their_number(rounds, words):
    text = _text(_page(run(rounds)))
    assert (words in text) if words else "Each bar is the mean" not in text


@pytest.mark.medium
def test_each_device_has_a_row_and_many_devices_the_most_measured():
    assert _rows(_page(run(2)), "user accuracy of each device") == [
        ["pi-1", "2", "0.050", "0.275", "0.050", "0.275"],
        ["pi-2", "2", "0.100", "0.550", "0.100", "0.550"],
    ]
    names = [f"pi-{number:03}" for number in range(100)]
    often = record(1, user_accuracies={"pi-099": 0.5})
    page = _page(Run(info(), (often, record(2, user_accuracies=dict.fromkeys(names, 0.5)))))
    rows = _rows(page, "user accuracy of each device")
    assert len(rows) == MAX_DEVICES and rows[-1][:2] == ["pi-099", "2"]
    assert "More are not shown" in _text(page)


def test_error_metric_is_named_and_its_worst_is_the_highest():
    records = tuple(replace(one, metric="MAE", metric_goal="min") for one in run(3).records)
    text = _text(_page(Run(info(), records)))
    assert "MAE by round" in text and "90th percentile" in text and "highest" in text
    assert "10th percentile" not in text and "UA" not in text
    assert "|MAE, best|0.100|" in text


@pytest.mark.parametrize(
    ("status", "because", "words"),
    [("running", None, "No round of this run is over yet."), ("interrupted", "interrupted", "It has no rounds.")],
)
def test_run_without_rounds_has_a_page(status, because, words):
    text = _text(_page(run(0, status=status, stopped_because=because)))
    assert words in text and f"UTC: {status}|" in text and "target_ua" in text


@pytest.mark.medium
def test_page_and_csv_name_devices_with_bounded_updates():
    bad: dict[str, list[str]] = {"<b>foe": ["weights", "exp_avg_sq"]}
    records = (record(1, bounded={"norm": 1}, bounded_devices=bad), record(2, bounded={"norm": 1}, bounded_devices=bad))
    page = _page(Run(info("a"), records))
    assert "Devices whose updates were bounded" in page
    assert "&lt;b&gt;foe" in page
    assert "exp_avg_sq 2, weights 2" in page
    assert "Devices whose updates were bounded" not in _page(Run(info("a"), (record(1),)))
    [line, _] = csv.DictReader(io.StringIO(csv_text([Run(info("a"), records)]), newline=""))
    assert (line["bounded"], line["bounded_devices"]) == ("norm=1", "<b>foe=weights,exp_avg_sq")


def test_page_and_csv_name_the_devices_whose_updates_were_pulled_most():
    records = (
        record(1, pulls={"far": 0.9, "near": 0.2}, pull_quantiles={"p50": 0.1, "p90": 0.5, "max": 0.9}),
        record(2, pulls={"far": 0.8}, pull_quantiles={"p50": 0.0, "p90": 0.4, "max": 0.8}),
    )
    text = _text(_page(Run(info("a"), records)))
    assert "far|85 %|2" in text
    assert text.index("far|85 %") < text.index("near|20 %|1")
    [first, _] = csv.DictReader(io.StringIO(csv_text([Run(info("a"), records)]), newline=""))
    assert (first["pulls"], first["pull_quantiles"]) == ("far=0.9 near=0.2", "max=0.9 p50=0.1 p90=0.5")


@pytest.mark.medium
def test_page_of_a_running_run_is_marked_as_running():
    assert "while a run was going on" in _page(run(3, status="running", stopped_because=None))
    assert "while a run was going on" not in _page(run(3))


@pytest.mark.medium
def test_page_of_5000_rounds_is_below_2_mb_and_names_omitted_parts():
    names = {f"pi-{number:02}": 0.5 for number in range(32)}
    records = tuple(record(number, user_accuracies=names) for number in range(1, 5001))
    page = _page(Run(info(), records))
    assert len(page.encode()) < 2_000_000
    text = _text(page)
    assert "4,500 rounds between 100 and 4601 are left out here; fedpatch report --csv has all of them." in text
    assert "Of 5,000 points the curve has the least and the most of each stretch." in text
    assert text.count("Each bar is the mean of 42 rounds") == 3
    assert len(_rows(page, "Rounds")) == 500


@pytest.mark.medium
def test_runs_are_compared_by_figures_and_differing_settings():
    one = run(10, "a", settings={"target_ua": 0.8, "seed": 1, "task": "digits"})
    other = run(3, "b", settings={"target_ua": 0.8, "seed": 2, "task": "digits", "new": True})
    page = _page(one, other)
    figures = {name: cells for name, *cells in _rows(page, "Runs")}
    assert figures["label"] == ["new -, seed 1", "new true, seed 2"]
    assert figures["rounds"] == ["10", "3"] and figures["UA last"] == figures["UA best"] == ["0.910", "0.700"]
    assert figures["rounds to target"] == ["4", "not reached"]
    assert figures["time in rounds"] == ["57 s", "17 s"]
    assert _rows(page, "Settings that differ") == [["new", "-", "true"], ["seed", "1", "2"]]
    assert page.count('aria-describedby="comparison-') == 2


@pytest.mark.medium
def test_runs_of_different_metrics_have_separate_charts():
    errors = tuple(replace(one, metric="MAE", metric_goal="min") for one in run(3).records)
    text = _text(_page(run(3, "a"), Run(info("b"), errors)).partition("Settings that differ")[0])
    assert all(title in text for title in ("User accuracy by round", "MAE by round"))


def test_rounds_to_target_are_the_aggregated_rounds_before_the_measurement():
    records = [record(1), record(2, outcome="failed", user_accuracy=1.0), record(3), record(4)]
    assert rounds_to_target(Run(info(settings={"target_ua": 0.7}), tuple(records))) == "1"
    assert rounds_to_target(Run(info(settings={}), tuple(records))) == "-"


@examples(30)
@given(st.lists(RUNS, max_size=2))
def test_csv_has_a_line_for_each_round_and_no_formula(runs):
    lines = list(csv.DictReader(io.StringIO(csv_text(runs), newline="")))
    assert len(lines) == sum(len(one.records) for one in runs)
    for line, (_, kept) in zip(lines, ((one, kept) for one in runs for kept in one.records), strict=True):
        assert (line["round"], line["outcome"]) == (str(kept.round), kept.outcome)
        assert not line["failure"].startswith(("=", "+", "-", "@"))


def test_csv_has_numbers_in_full():
    kept = RoundRecord(7, "aggregated", 3, 3, 0, 3, 1 / 3, user_accuracies={"b": 0.5, "a": 0.25}, bytes_up=10**9)
    text = csv_text([Run(info("a"), (kept,))])
    line = next(csv.DictReader(io.StringIO(text)))
    assert text.splitlines()[0] == ",".join(COLUMNS)
    assert (float(line["user_accuracy"]), line["user_accuracy_p10"], line["bytes_up"]) == (1 / 3, "", "1000000000")
    assert line["user_accuracies"] == "a=0.25 b=0.5"


def _named(id: str, private: str = "affine", strategy: str = "fedavg", **settings: Any) -> Run:
    return Run(info(id, private=private, strategy=strategy, settings=settings), (record(1),))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ((_named("1"), _named("2", "all")), ["affine", "all"]),
        ((_named("1"), _named("2", strategy="fedadam")), ["fedavg", "fedadam"]),
        (
            (_named("1"), _named("2", "all"), _named("3", "all", "fedadam")),
            ["fedavg, affine", "fedavg, all", "fedadam, all"],
        ),
        ((_named("1", seed=0), _named("2", seed=1)), ["seed 0", "seed 1"]),
        ((_named("1", grace_s=1), _named("2", grace_s=2)), ["grace s 1", "grace s 2"]),
        ((_named("1", broker="a"), _named("2", broker="b")), ["1", "2"]),
        ((_named("1"), _named("2"), _named("3", "all")), ["affine, 1", "affine, 2", "all, 3"]),
        ((_named("1"),), ["1"]),
        (
            (_named("1", seed=5, epochs=40, rounds=3), _named("2", seed=0, epochs=1, rounds=9)),
            ["epochs 40, rounds 3, seed 5", "epochs 1, rounds 9, seed 0"],
        ),
        (
            (_named("1", a=1, b=1, c=1, d=1, seed=5), _named("2", a=2, b=2, c=2, d=2, seed=0)),
            ["a 1, b 1, c 1", "a 2, b 2, c 2"],
        ),
    ],
)
def test_labels_of_runs_name_the_settings_that_differ(runs, expected):
    assert list(labels(runs).values()) == expected


@given(st.lists(RUNS, min_size=1, max_size=5, unique_by=lambda run: run.info.id))
def test_labels_are_different_for_different_runs(runs):
    found = labels(runs)
    assert len({*found.values()}) == len(runs)


GAINS = {"measured": 10, "user_accuracy": 0.9, "gaining": 0.7, "losing": 0.3, "gain": 0.021, "gain_median": 0.02}


def test_each_tile_holds_a_figure_and_a_short_line():
    evaluated = record(3, outcome="evaluated", measured=8)
    failed = record(4, outcome="failed", failure="quorum_missed")
    page = _page(Run(info(), (record(1), record(2, independent=GAINS), evaluated, failed)))
    tiles = re.findall(r"<dd>(.*?)</dd>", page)
    texts = [unescape(re.sub(r"<[^>]*>", "", tile)) for tile in tiles]
    assert "70 % +2.1 points, round 2" in texts and "2 1 failed" in texts
    assert max(map(len, texts)) <= 30
    assert "Gain over learning alone, round 2: 7 of 10 devices gain (70%), 3 lose" in _text(page)


def test_run_with_restart_drain_and_revocation_says_so_instead_of_no_trouble():
    holds = {
        ("home", "pi-2"): {"drained": Hold("new card", 1.78e9 + 60)},
        ("home", "pi-7"): {"drained": Hold("before the run", 1.78e9 - 60)},
        ("other", "pi-8"): {"drained": Hold("of another fleet", 1.78e9 + 60)},
    }
    entry = Entry(part=DEVICE, name="pi-3", serial="ab", revoked_at=int(1.78e9 + 90), reason="lost")
    kept = info(epoch=2, settings={"fleet": "home"})
    records = (record(1, decline_reasons={}, absent={"pi-4": 1}), record(2, decline_reasons={}, absent={"pi-4": 3}))
    page = _page(Run(kept, records, recorded_incidents(kept, holds, Index(fleet="home", entries=(entry,)))))
    assert "No device declined" not in page
    assert _rows(page, "Incidents") == [
        ["coordinator restarted", "-", "-", "its last process is number 2 of the run"],
        ["drained", "pi-2", "2026-05-28 20:27 UTC", "new card"],
        ["revoked", "pi-3", "2026-05-28 20:28 UTC", "lost"],
        ["absent", "pi-4", "-", "missed rounds in a row: 3"],
    ]


def test_epoch_of_a_leader_with_standbys_is_no_restart():
    assert recorded_incidents(info(epoch=7, settings={"standby": True}), {}, None) == ()
