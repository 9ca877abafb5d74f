"""A table of results with a record a line: records are replaced in place, and those of several processes are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support.json_lines import UNFINISHED, JsonLines, Record
from fedpatch.shared.errors import UsageError


def table(path: Path) -> JsonLines[int]:
    return JsonLines(path, lambda record: record["seed"])


def record(seed: int, rounds: int = 3) -> Record:
    return {"seed": seed, "curve": [0.1, 1 / 3], "rounds": rounds}


def test_without_a_file_there_are_no_records_and_nothing_is_made(tmp_path):
    one = table(tmp_path / "table.jsonl")
    assert (one.keys, one.get(0), one.records()) == ([], None, [])
    assert list(tmp_path.iterdir()) == []


def test_records_are_read_as_they_were_written_in_the_order_of_their_first_writing(tmp_path):
    path = tmp_path / "new" / "table.jsonl"
    for seed in (2, 0):
        table(path).put(record(seed))
    assert table(path).records() == [record(2), record(0)]
    assert path.read_text().count("\n") == 2


def test_record_with_the_same_terms_is_replaced_in_its_line_and_other_lines_keep_their_bytes(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"seed": 0, "rounds": 1.0}\n{"seed": 1}\n')
    table(path).put(record(1, rounds=9))
    first, second = path.read_text().splitlines()
    assert first == '{"seed": 0, "rounds": 1.0}'
    assert table(path).get(1) == record(1, rounds=9)
    assert '"rounds":9' in second


def test_tables_of_one_file_keep_the_records_of_both(tmp_path):
    first, second = table(tmp_path / "table.jsonl"), table(tmp_path / "table.jsonl")
    first.put(record(0))
    second.put(record(1))
    first.put(record(2))
    assert first.keys == second.keys == [0, 1, 2]


def test_deleted_record_is_gone_and_the_others_stay(tmp_path):
    one = table(tmp_path / "table.jsonl")
    for seed in range(3):
        one.put(record(seed))
    one.delete(1)
    assert table(tmp_path / "table.jsonl").keys == [0, 2]


def test_changed_record_of_a_caller_does_not_change_the_table(tmp_path):
    one = table(tmp_path / "table.jsonl")
    one.put(record(0))
    found = one.get(0)
    assert found is not None
    found["rounds"] = 99
    assert one.get(0) == record(0)


def test_beside_the_file_only_its_lock_is_left(tmp_path):
    table(tmp_path / "table.jsonl").put(record(0))
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == [
        f"{UNFINISHED}/table.jsonl.lock",
        "table.jsonl",
    ]


@pytest.mark.parametrize("line", ["", "{", "[]", "7", '{"rounds": 1}', '{"seed": [0]}', '"\\ud800'])
def test_damaged_line_is_named_with_the_remedy_and_kept(tmp_path, line):
    path = tmp_path / "table.jsonl"
    path.write_text(f'{{"seed": 0}}\n{line}\n')
    before = path.read_bytes()
    for use in (lambda: table(path).get(0), lambda: table(path).put(record(1))):
        with pytest.raises(UsageError, match=r"table\.jsonl, line 2 is damaged \(.*\); delete the line to compute"):
            use()
    assert path.read_bytes() == before


def test_second_line_with_the_same_terms_is_refused(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"seed": 0}\n{"seed": 1}\n{"seed": 0}\n')
    with pytest.raises(UsageError, match=r"line 3 repeats an earlier line \(0\); delete one of the two"):
        table(path).keys  # noqa: B018


def test_place_names_file_and_line(tmp_path):
    one = table(tmp_path / "table.jsonl")
    for seed in (5, 7):
        one.put(record(seed))
    assert one.place(7) == f"{tmp_path / 'table.jsonl'}, line 2"
