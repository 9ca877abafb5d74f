"""One reader of files, folders, frames and arrays: damaged lines, missing values, and no silent conversion."""

from __future__ import annotations

import math
import os
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.examples import (
    ReadingsFormat,
    files_version,
    from_arrays,
    from_dataset,
    from_frame,
    read,
    read_csv,
    windows,
)
from fedpatch.shared.tasks.reading.cell_values import RefusedValue, number_in, time_in
from fedpatch.shared.tasks.splits import block_split, time_split
from tests.support.examples import examples

CLASSES = ["off", "on"]


def table(folder: Path, text: str | bytes, **policy) -> tuple[list, list]:
    """Inputs and classes of a file with the columns v and mode, whose damaged lines may be many."""
    file = folder / "one.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = read_csv(file, ["v"], "mode", CLASSES, **{"damaged_share": 0.9, **policy})
    return found.x[:, 0].tolist(), found.y.tolist()


WRITTEN_BY_NOBODY = [
    "1_000",
    "１２",
    "٣",
    "infinity",
    "-Infinity",
    "+nan",
    "-nan",
    "\u20031",
    "1\x0b",
    "1e999",
    "iNf",
]


@pytest.mark.parametrize("text", WRITTEN_BY_NOBODY)
def test_text_that_float_takes_and_nobody_writes_is_refused(text):
    float(text)
    with pytest.raises(RefusedValue):
        number_in(text)


NUMBER_TEXTS = st.text("0123456789+-.eE_ ,١２\t\u2003nNaAiIfFtTyY", max_size=8) | st.floats().map(repr)


@examples(200)
@given(NUMBER_TEXTS)
def test_a_number_is_ascii_digits_with_the_value_of_float_or_it_is_refused(text):
    """No text that float() takes and a person would not write passes."""
    try:
        found = number_in(text)
    except RefusedValue:
        return
    bare = text.strip(" \t")
    if math.isnan(found):
        assert bare.lower() in ("", "nan", "na", "n/a", "null", "none", "?")
        return
    assert set(bare) <= set("0123456789+-.eE") and bare[-1] in "0123456789."
    assert found == float(bare) and abs(found) < 4e38


@pytest.mark.parametrize(
    ("text", "decimal", "value"), [("0,5", ",", 0.5), ("-1e3", ".", -1000), (" 7\t", ".", 7), (".5", ".", 0.5)]
)
def test_numbers_that_people_write_are_read(text, decimal, value):
    assert number_in(text, decimal) == value


@pytest.mark.parametrize(
    ("text", "decimal"),
    [("0,5", "."), ("0.5", ","), ("1 000", "."), ("1'000", "."), ("3V", "."), ("12%", "."), ("true", ".")],
)
def test_number_in_another_notation_is_refused(text, decimal):
    with pytest.raises(RefusedValue, match="no number"):
        number_in(text, decimal)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("2026-03-01", "name its column with time="),
        ("True", "write 1 and 0"),
        ("0x1F", "in decimal digits"),
        ("\u22123.5", "write its sign as -"),
        ("1'500", "without marks between the thousands"),
        ("1\u00a0000", "without marks between the thousands"),
        ("20 \u00b0C", "without its unit"),
        ("15%", "without its unit"),
        ("3.3V", "without its unit"),
    ],
)
def test_text_that_people_write_for_a_number_is_refused_with_its_remedy(text, remedy):
    with pytest.raises(RefusedValue, match=f"is no number; .*{remedy}"):
        number_in(text)


def test_target_that_is_a_word_names_the_setting_for_classes(tmp_path):
    (tmp_path / "a.csv").write_text("v,mode\n1,walk\n2,run\n")
    with pytest.raises(DataError, match=r"'walk' is no number; if the target is a class, .* classes=\["):
        read(tmp_path / "a.csv", ReadingsFormat(["v"], "mode"))


def test_inputs_whose_last_digits_float32_does_not_hold_are_noted(tmp_path):
    (tmp_path / "a.csv").write_text("t,v,mode\n1700000000123,16777216,0\n1700000000124,2,1\n1,33554432,1\n")
    found = read(tmp_path / "a.csv", ReadingsFormat(["t", "v"], "mode"))
    [note] = found.notes
    assert "column t" in note and "float32: 2, the first: 1700000000123 becomes 1700000038912" in note
    arrays = from_arrays(np.array([[1700000000123], [5]]), [0, 1])
    [note] = arrays.notes
    assert "arrays: x" in note and "float32: 1, the first: 1700000000123" in note
    assert from_arrays(np.array([[2**30], [5]]), [0, 1]).notes == ()


def test_times_are_numbers_or_dates_with_a_zone():
    assert time_in("49105962326000") == (49105962326000.0, False)
    assert time_in("1970-01-01T01:00:30+01:00") == time_in("1970-01-01 00:00:30") == (30.0, True)
    for text in ("12:30", "1970-13-01", "01.02.1970", "1_0", "nan"):
        with pytest.raises(RefusedValue):
            time_in(text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("0.5", "too few columns"),
        ("0.5,on,0.6,on", "too many columns"),
        ("warm,on", "column v: 'warm' is no number"),
        ("0.5,idle", "column mode: 'idle' is none of the classes off, on"),
        ('"0.5,on', "a quote is not closed"),
        ("\0\0\0", "bytes that are no text"),
        ("0,5,on", "too many columns"),
        ("\udcff0.5,on", "is no number"),
    ],
)
def test_a_damaged_line_costs_that_line_and_is_named(tmp_path, caplog, damage, words):
    text = f"v,mode\n1,off\n2,on\n{damage}\n3,off\n".encode("utf-8", "surrogateescape")
    assert table(tmp_path, text) == ([1, 2, 3], [0, 1, 0])
    assert "lines damaged: 1, left out, of 4" in caplog.text and "line 4" in caplog.text and words in caplog.text


@pytest.mark.parametrize(
    "text", ["v,mode\n1,off\n2,on", "\ufeffv,mode\r\n1,off\r\n2,on", "v,mode\n1,off\n\n2,o", "v,mode\r1,off\r2,on"]
)
def test_last_line_without_its_end_is_left_for_the_next_time(tmp_path, text):
    assert table(tmp_path, text) == ([1], [0])


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("# by the logger\nv;mode\n1;off\n#x\n2;on\n", {"delimiter": ";"}),
        ("1,off\n2,on\n", {"names": ["v", "mode"]}),
        ("v,mode\n1,off\n2,on\n", {"names": ["v", "mode"]}),
        ("v,mode,\n1,off,\n2,on,,\n", {}),
        ("v,mode;\n1,off;\n2,on;\n", {}),
        ("v,mode\n1,off\nv,mode\n2,on\n", {}),
        ("v mode\n1   off\n2 on\n", {"delimiter": " "}),
        ("v,mode\n\r1,off\n\r2,on\n\r", {}),
        ('"v", "mode"\n"1","off"\n2,on\n', {}),
        ("v;mode\n1,0;off\n2,0;on\n", {"delimiter": ";", "decimal": ","}),
        ("mode,°C,v\noff,3°,1\non,4°,2\n".encode("latin-1"), {}),
    ],
)
def test_notations_of_loggers_are_read(tmp_path, text, policy):
    assert table(tmp_path, text, **policy) == ([1, 2], [0, 1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v;mode\n1;off\n", r"separated by ';': set delimiter=';'"),
        ("1,off\n2,on\n", r"name all its columns in order with names="),
        ("v,v,mode\n1,2,off\n", "column 'v' twice"),
        ("v,mode\n0,5;off\n", "too|column"),
        ("v,mode\n1,off\nx,off\n", "2 lines 1 are damaged"),
        ("v,mode\n1,off\n".encode("utf-16"), "UTF-16; save it as UTF-8"),
    ],
)
def test_unusable_file_is_refused_with_the_remedy(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        table(tmp_path, text, damaged_share=0.2)


def test_input_without_a_value_is_nan_and_row_without_a_target_is_left_out(tmp_path, caplog):
    values, targets = table(tmp_path, "v,mode\n,on\nNA,off\n1,\n2,on\n")
    assert [math.isnan(one) for one in values] == [True, True, False] and targets == [1, 0, 1]
    assert "lines without v: 2, for prepare to fill" in caplog.text
    assert "lines without mode: 1, left out" in caplog.text


NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: not {*b"/\0"} & {*name})


CONTENTS = [
    b"v,mode\n7,on\n",
    b"time,v,mode\n7,7,on\n",
    b"time,v,mode\n2026-01-01T00:00:00,7,on\n",
    b"time,v,mode\nnoon,7,on\n",
    b"time,v,mode\n,7,on\n",
    b"time,v,mode\n7,on\n",
    b"time,mode\n7,on\n",
    b"time;v;mode\n7;0,5;on\n",
    b"Logger 1.2\ntime,v,mode\n7,7,on\n",
]


@examples(80)
@given(st.dictionaries(NAMES, st.binary(max_size=40) | st.sampled_from(CONTENTS), max_size=5), st.booleans())
def test_no_file_of_a_folder_stops_the_reading_of_the_others(tmp_path_factory, files, upper):
    """Names and contents of any bytes, beside one good file, whose times are known."""
    folder = tmp_path_factory.mktemp("day")
    lines = [f"{10 * i},{i},{CLASSES[i % 2]}\n" for i in range(20)]
    (folder / "good.csv").write_text("time,v,mode\n" + "".join(lines))
    for name, content in files.items():
        with open(os.fsencode(folder) + b"/" + name + (b".CSV" if upper else b".csv"), "wb") as file:
            file.write(content)
    found = read_csv(folder, ["v"], "mode", CLASSES)
    good = found.source == found.sources.index("good.csv")
    assert found.x[good, 0].tolist() == list(range(20))
    assert found.times is not None and found.times[good].tolist() == [10 * i for i in range(20)]
    assert time_split(found, 0.2)[1].any()
    for text in (*found.notes, *found.sources):
        text.encode()


def test_what_is_no_file_of_readings_is_left_out(tmp_path):
    (tmp_path / "10.csv").write_text("v,mode\n3,on\n")
    (tmp_path / "9.CSV").write_text("v,mode\n1,off\n")
    (tmp_path / "._9.csv").write_bytes(b"\0\5\x16\7")
    (tmp_path / ".10.csv").write_text("v,mode\n7,on\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "lost.csv").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.csv")
    found = read_csv(tmp_path, ["v"], "mode", CLASSES)
    assert found.x[:, 0].tolist() == [1, 3]
    version = files_version(tmp_path)
    (tmp_path / "empty.csv").write_text("v,mode\n")
    assert version and files_version(tmp_path) != version


@pytest.mark.parametrize("name", ["pipe", "nothing"])
def test_place_that_is_no_file_is_a_data_error(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="cannot be read"):
        read_csv(tmp_path / name, ["v"], "mode", CLASSES)


def test_folder_without_a_usable_file_names_the_first_faults(tmp_path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.csv", "wb") as file:
        file.write(b"v,mode\n1,zz\n")
    with pytest.raises(DataError, match=r"caf\?\.csv, line 2, column mode: 'zz' is none of the classes off, on"):
        read_csv(tmp_path, ["v"], "mode", CLASSES)


def test_memory_of_reading_is_near_that_of_the_arrays(tmp_path):
    file = tmp_path / "large.csv"
    line = ",".join(f"{value:.4f}" for value in np.linspace(-9, 9, 20)) + ",on\n"
    file.write_text(",".join([*(f"c{i}" for i in range(20)), "mode"]) + "\n" + line * 8000)
    tracemalloc.start()
    found = read_csv(file, [f"c{i}" for i in range(20)], "mode", CLASSES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    kept = sum(one.nbytes for one in (found.x, found.y, found.source, found.row, found.first))
    assert peak < 2.5 * kept + 2**21


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs": "ab"}, "inputs is 'ab', one text"),
        ({"inputs": []}, "no columns"),
        ({"inputs": ["a", "a"]}, "'a' twice"),
        ({"inputs": ["a"], "classes": ["x", "y", "x"]}, "'x' twice"),
        ({"inputs": ["a"], "classes": [0, 1]}, "write '0'"),
        ({"inputs": ["a"], "target": "a"}, "is an input and the target"),
        ({"inputs": ["a"], "delimiter": "::"}, "one character"),
        ({"inputs": ["a"], "delimiter": ",", "decimal": ","}, "beside the decimal mark"),
        ({"inputs": ["a"], "names": ["b"]}, "names has no a"),
        ({"inputs": ["a"], "window": 5, "mixed": "first"}, "use 'last' or 'drop'"),
        ({"inputs": ["a"], "target": 1}, "target is 1, a int; give a text"),
        ({"inputs": ["a"], "group": None}, "group is None, a NoneType; give a text, or leave it out"),
        ({"inputs": ["a"], "delimiter": 44}, "delimiter is 44, a int; give a text"),
        ({"inputs": ["a"], "damaged_share": "0.2"}, "damaged_share is '0.2'; it must be from 0 to 1"),
        ({"inputs": ["a"], "window": True}, "windows of length True .* must be integers"),
        ({"inputs": ["a"], "max_gap": "1"}, "max_gap is '1'; it must be a number"),
    ],
)
def test_wrong_format_is_a_usage_error(arguments, words):
    with pytest.raises(UsageError, match=words):
        ReadingsFormat(**arguments)


def test_frame_has_the_policy_of_a_file():
    frame = pd.DataFrame(
        {0: [0.5, None, "0.25"], "mode": [1, 0, 1], "when": pd.date_range("2026-01-01", periods=3, freq="s")}
    )
    found = from_frame(frame, [0], "mode", [0, 1], time="when")
    assert found.x[[0, 2], 0].tolist() == [0.5, 0.25] and np.isnan(found.x[1, 0])
    assert found.y.tolist() == [1, 0, 1]
    assert found.time_text(2) == "2026-01-01T00:00:02Z"


@pytest.mark.parametrize(
    ("columns", "inputs", "classes", "error"),
    [
        ({"v": [1.0], "mode": [["on"]]}, ["v"], CLASSES, r"row 0, column mode: \['on'\] \(list\) cannot be a class"),
        ({"v": ["1_0"], "mode": ["on"]}, ["v"], CLASSES, "'1_0' is no number"),
        ({"v": [1j], "mode": ["on"]}, ["v"], CLASSES, "is no number"),
        ({"v": [1.0], "mode": [1]}, ["v"], ["0", "1"], "give classes as numbers"),
        ({0: [1.0], "mode": ["on"]}, ["0"], CLASSES, "its name is 0, a int"),
        ({"v": [pd.Timestamp(0)], "mode": ["on"]}, ["v"], CLASSES, "is no number"),
        ({"v": [1.0], "mode": ["on"]}, ["v"], ["on", "on"], "'on' twice"),
    ],
)
def test_frame_with_what_is_no_number_is_an_error_of_ours(columns, inputs, classes, error):
    with pytest.raises((DataError, UsageError), match=error):
        from_frame(pd.DataFrame(columns), inputs, "mode", classes)


def test_frame_with_a_column_twice_is_refused():
    with pytest.raises(DataError, match="column 'v' stands 2 times"):
        from_frame(pd.DataFrame([[1, 2, "on"]], columns=["v", "v", "mode"]), ["v"], "mode", CLASSES)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([[1.0], [1.0, 2.0]], [0, 1], "x is no array: its rows differ in length"),
        ([["1_0"]], [0], "text"),
        (np.ma.masked_equal([[1.0], [2.0]], 2.0), [0, 1], "masked"),
        ([[1e39]], [0], "not a finite number"),
        ([[1.0]], [[0], [1]], "1 inputs and 2 targets"),
        ([[1.0]], ["on"], "y: the list holds 'on'"),
        ([[1.0]], [None], "not a finite number"),
        ([[b"1"]], [0], "bytes"),
        ([[1 + 0j]], [0], "complex"),
    ],
)
def test_arrays_with_what_is_no_number_are_an_error_of_ours(x, y, words):
    with pytest.raises(DataError, match=words):
        from_arrays(x, y)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("P", "palette"),
        ("RGBA", "transparency"),
        ("I;16", "deeper than 8 bits"),
        ("CMYK", "convert it to L or RGB"),
        ("turned", "to be turned"),
    ],
)
def test_picture_whose_values_are_no_plain_brightness_is_refused(mode, words):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.new("L" if mode == "turned" else mode, (2, 2))
    if mode == "turned":
        picture.getexif()[274] = 6
    with pytest.raises(DataError, match=f"item 0 is a picture .*{words}"):
        from_dataset([(picture, 0)])


def test_raw_file_is_read_for_prediction_without_target_group_and_header(tmp_path):
    form = ReadingsFormat(["a", "b"], "mode", CLASSES, time="when", group="who", window=2)
    rows = [f"{i},{i / 10},{i + 1}" for i in range(4)]
    file = tmp_path / "new.csv"
    for text in (
        "when,a,b\n" + "\n".join(rows) + "\n",
        "\n".join(rows) + "\n",
        "\n".join(f"{one},on" for one in rows) + "\n",
    ):
        file.write_text(text)
        found = read(file, form, for_prediction=True)
        assert found.x.shape == (2, 2, 2) and found.times is not None
        assert found.times.tolist() == [1, 3]
        assert found.x[1, 1].tolist() == [3, 4]
    file.write_text("1,2,3,4,5\n")
    with pytest.raises(DataError, match="its first line has 5 cells"):
        read(file, form, for_prediction=True)


def test_reading_that_a_rotated_log_repeats_in_the_next_file_is_counted_once(tmp_path):
    rows = [f"{i},{i / 8},{CLASSES[i // 4 % 2]}\n" for i in range(12)]
    for name, part in (("1", rows[:8]), ("2", rows[5:])):
        (tmp_path / f"{name}.csv").write_text("time,v,mode\n" + "".join(part))
    found = read_csv(tmp_path, ["v"], "mode", CLASSES)
    assert found.x[:, 0].tolist() == [i / 8 for i in range(12)]
    assert found.notes == ("readings that stand several times in 1.csv, 2.csv: 3, counted once",)


def test_lines_of_several_persons_may_alternate(tmp_path):
    lines = [f"p{i % 2},{i // 2},{i},{CLASSES[i // 20 % 2]}\n" for i in range(40)]
    (tmp_path / "all.csv").write_text("who,time,v,mode\n" + "".join(lines))
    form = ReadingsFormat(["v"], "mode", CLASSES, time="time", group="who", window=5)
    found = read(tmp_path / "all.csv", form).of_group("p1")
    assert (found.x % 2 == 1).all() and len(found) == 4
    plain = read_csv(tmp_path / "all.csv", ["v"], "mode", CLASSES, time="time", group="who")
    assert windows(plain, 5, 5).of_group("p1").x.tolist() == found.x.tolist()
    untimed = [line.replace(f",{i // 2},", ",", 1) for i, line in enumerate(lines)]
    untimed[19:21] = ["damaged\n", "damaged\n"]
    (tmp_path / "all.csv").write_text("who,v,mode\n" + "".join(untimed))
    found = read(tmp_path / "all.csv", replace(form, time=""))
    assert (np.diff(found.x) == 2).all() and len(found) == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Größe,mode\n1,off\n".encode("latin-1"), "save it as UTF-8"),
        ("V,Mode\n1,off\n", "'v' is spelled 'V' in the file"),
        (b"\x1f\x8b\x08\x00 compressed", "is compressed with gzip; decompress it"),
        (b"PK\x03\x04 workbook", "is a workbook or a zip archive; save it as CSV"),
        (b"PAR1\x15\x04", "is a Parquet file; read it with pandas"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "is a workbook of an old Excel"),
        (b'\xef\xbb\xbf{"v": 1, "mode": "on"}\n', "is JSON; read it with pandas"),
        ("<!DOCTYPE html><title>404</title>", "is a web page, perhaps of a failed download"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "is a pointer of Git LFS"),
        ("v mode\n1 off\n", "set delimiter=' '"),
        ("sep=;\nv;mode\n1;off\n", "this line is for Excel: remove it, and set delimiter=';'"),
        ("v,mode\n", "no examples; collect lines"),
        ("v,mode\n1,Off\n2,ON\n", r"'off' is spelled 'Off' here: use one of them"),
    ],
)
def test_file_that_is_nearly_right_is_refused_with_the_difference(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        table(tmp_path, text)


def test_column_without_a_name_is_neither_time_nor_group(tmp_path):
    assert table(tmp_path, "v,,mode\n1,,off\n2,,on\n") == ([1, 2], [0, 1])


def test_file_with_line_ends_of_old_systems_is_read_at_any_length(tmp_path):
    values, targets = table(tmp_path, "v,mode\r" + "1.25,off\r2.5,on\r" * 60_000 + "half,o")
    assert len(values) == 120_000 and values[:2] == values[-2:] == [1.25, 2.5] and targets[-1] == 1


def test_line_without_its_time_is_left_out_and_is_not_damaged(tmp_path):
    lines = "".join(f"{i if i % 3 else ''},{i},off\n" for i in range(1, 10))
    (tmp_path / "one.csv").write_text("time,v,mode\n" + lines)
    found = read_csv(tmp_path / "one.csv", ["v"], "mode", CLASSES)
    assert found.times is not None and found.times.tolist() == [1, 2, 4, 5, 7, 8]
    assert found.notes == (f"{tmp_path}/one.csv: lines without the time: 3, left out",)


def test_input_t_is_no_time_unless_the_format_names_it(tmp_path):
    """It may be a temperature, which falls and may be missing."""
    (tmp_path / "one.csv").write_text("t,mode\n21.5,off\n,on\n21.0,on\n")
    found = read_csv(tmp_path / "one.csv", ["t"], "mode", CLASSES)
    assert found.times is None and np.isnan(found.x[1, 0]) and len(found) == 3
    assert read_csv(tmp_path / "one.csv", ["t"], "mode", CLASSES, time="t").times is not None


def test_input_t_that_counts_like_a_clock_still_shows_a_gap(tmp_path):
    kept = [*range(20), *range(50, 70)]
    (tmp_path / "one.csv").write_text("t,v,mode\n" + "".join(f"{i},{i % 5},off\n" for i in kept))
    found = read(tmp_path / "one.csv", ReadingsFormat(["t", "v"], "mode", CLASSES, window=10, stride=1))
    assert len(found) == 22 and (found.x[:, 0, -1] - found.x[:, 0, 0] == 9).all()


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30"])
def test_date_that_no_clock_in_utc_shows_is_refused(text):
    with pytest.raises(RefusedValue, match="is no time"):
        time_in(text)


def test_target_with_the_name_of_a_time_hides_no_column_of_the_time(tmp_path):
    (tmp_path / "one.csv").write_text("time,timestamp,v\n" + "".join(f"{n % 3},{n},0.{n}\n" for n in range(9)))
    found = read_csv(tmp_path / "one.csv", ["v"], "time")
    assert found.times is not None and found.times.tolist() == list(range(9))


def test_copy_of_a_file_counts_once(tmp_path):
    """Else its readings would be for training and for testing."""
    for name in ("monday.csv", "monday (1).csv", "tuesday.csv"):
        (tmp_path / name).write_text(f"v,mode\n{len(name)},off\n2,on\n".replace("14", "10"))
    (tmp_path / "link.csv").symlink_to("monday.csv")
    found = read_csv(tmp_path, ["v"], "mode", CLASSES)
    assert sorted(found.x[:, 0].tolist()) == [2, 2, 10, 11]
    assert sum("counted once" in one for one in found.notes) == 2


@pytest.mark.parametrize("lines", [80, 60], ids=["whole", "earlier"])
@pytest.mark.parametrize("times", [True, False])
def test_copy_that_is_put_beside_a_file_moves_no_reading_to_another_part(tmp_path, lines, times):
    """Blocks are drawn by the name, and " (1)" comes before the dot."""
    text = timed(80)
    if not times:
        text = "".join(line.split(",", 1)[1] + "\n" for line in text.splitlines())
    (tmp_path / "day.csv").write_text(text)
    before = read_csv(tmp_path, ["v"], "mode", CLASSES)
    (tmp_path / "day (1).csv").write_text("".join(text.splitlines(keepends=True)[: lines + 1]))
    after = read_csv(tmp_path, ["v"], "mode", CLASSES)
    parts = [found.x[block_split(found, 7)[1], 0].tolist() for found in (before, after)]
    assert len(after) == 80 and sorted(parts[0]) == sorted(parts[1])


@pytest.mark.parametrize("name", ["x" * 300, "one\0two"])
def test_name_that_no_file_can_have_is_a_data_error(tmp_path, name):
    with pytest.raises(DataError, match="cannot be read"):
        read_csv(tmp_path / name, ["v"], "mode", CLASSES)


@pytest.mark.parametrize("values", [{"a", "b"}, {"a": 0}], ids=["set", "dict"])
def test_classes_without_an_order_are_refused(values: Any):
    """The texts of a set have another order in each process."""
    with pytest.raises(UsageError, match="has no order of values; give a list"):
        ReadingsFormat(["v"], "mode", values)


@pytest.mark.parametrize(
    ("labels", "classes", "found"),
    [
        ([True, False], [False, True], [1, 0]),
        (pd.array([True, None, False], dtype="boolean"), [False, True], [1, 0]),
        (pd.array([1, None, 0], dtype="Int64"), [0, 1], [1, 0]),
        (pd.Categorical(["b", None, "a"]), ["a", "b"], [1, 0]),
        ([1.0, float("nan"), 0.0], [0, 1], [1, 0]),
    ],
    ids=["bool", "nullable bool", "nullable integer", "category", "integers with a missing one"],
)
def test_labels_of_any_kind_of_column_are_classes(labels, classes, found):
    frame = pd.DataFrame({"v": np.arange(len(labels)), "mode": labels})
    assert from_frame(frame, ["v"], "mode", classes).y.tolist() == found


@pytest.mark.parametrize(
    ("frame", "arguments", "error"),
    [
        ({"v": [1.0]}, {}, "is a dict; give a pandas.DataFrame"),
        (None, {}, "is a NoneType; give a pandas.DataFrame"),
        (pd.DataFrame({"v": [1], "mode": [True]}), {}, r"True is none of the classes 0, 1; it is True or False here"),
        (pd.DataFrame({"v": [1], "mode": [1]}), {"classes": [False, True]}, "it is a number here"),
        (pd.DataFrame({"v": [10**400], "mode": [1]}), {}, "is not a finite number of float32"),
        (pd.DataFrame({"v": [1], "mode": [1]}), {"classes": [[0], [1]]}, "cannot be a class"),
        (pd.DataFrame({"v": [1], "mode": [1]}), {"classes": {0, 1}}, "has no order"),
        (pd.DataFrame({"v": [1], "mode": [1]}), {"inputs": ["v", "mode"]}, "is an input and the target"),
        (pd.DataFrame({"v": [1], "mode": [1], "who": [["ann"]]}), {"group": "who"}, "cannot be a group"),
    ],
)
def test_frame_that_python_would_stumble_over_is_an_error_of_ours(frame, arguments, error):
    with pytest.raises((DataError, UsageError), match=error):
        from_frame(frame, **{"inputs": ["v"], "target": "mode", "classes": [0, 1], **arguments})


class Unconvertible:
    def __array__(self, *_, **__):
        raise RuntimeError("is on another device")


@pytest.mark.parametrize(
    ("x", "y", "more", "words"),
    [
        (1.0, [0], {}, "x is one number"),
        ([[1.0]], 0, {}, "not a list of targets"),
        ([[10**400]], [0], {}, "more than 64 bits"),
        (Unconvertible(), [0], {}, "is on another device; make a NumPy array of it"),
        ([np.ma.masked_equal([1.0, 2.0], 2.0)], [0], {}, "masked values"),
        ([[1.0]], np.array([2**63], np.uint64), {}, "more than 63 bits"),
        ([[1.0], [2.0]], np.array([True, False], object), {}, "targets are True and False"),
        (np.array([[1.0], [True]], object), [0, 1], {}, "True or False beside other values"),
        ([[1.0, True], [0.5, 2.0]], [0, 1], {}, "True or False beside other values"),
        ([[1.0], [2.0]], [0, True], {}, "True or False beside other values"),
        ([[1.0], [2.0]], [0, 1], {"groups": ["ann", None]}, "row 1 has no group"),
        ([[1.0], [2.0]], [0, 1], {"groups": [["ann"], ["bob", "eve"]]}, "cannot be a group"),
        ([[1.0], [2.0]], [0, 1], {"groups": "ab"}, "give a list with the group"),
        ([[1.0], [2.0]], [0, 1], {"times": [0, math.nan]}, "a time is missing"),
        ([[1.0], [2.0]], [0, 1], {"inputs": "v"}, "one text"),
        ([[1.0], [2.0]], [0, 1], {"inputs": ["v", "w"]}, "2 names of inputs"),
    ],
)
def test_arrays_that_numpy_would_convert_or_stumble_over_are_an_error_of_ours(x, y, more, words):
    with pytest.raises((DataError, UsageError), match=words):
        from_arrays(x, y, **more)


def test_integers_in_an_array_of_objects_are_classes():
    assert from_arrays([[1.0], [2.0]], np.array([0, 1], object)).y.dtype == np.int64


ITEMS = [([0.0, 1.0], 3), ([2.0, 3.0], 4), ([4.0, 5.0], 5)]


@pytest.mark.parametrize("positions", [[0.5], [3], [-1], ["1"], [[0, 1]], [True]], ids=str)
def test_positions_that_a_data_set_does_not_have_are_refused(positions):
    for take in (lambda: from_dataset(ITEMS, positions), lambda: from_dataset(ITEMS).take(positions)):
        with pytest.raises(UsageError, match=r"positions of 3|does not fit 3"):
            take()


def test_mask_and_positions_choose_the_same_items():
    for chosen in ([True, False, True], [0, 2]):
        assert from_dataset(ITEMS, chosen).y.tolist() == from_dataset(ITEMS).take(chosen).y.tolist() == [3, 5]
    assert len(from_dataset(ITEMS).take([])) == 0


@pytest.mark.parametrize(
    ("dataset", "transform", "words"),
    [
        ({"image": 1}, None, "item 0: cannot be read: KeyError"),
        (ITEMS, lambda _: 1 / 0, "item 0: transform failed: ZeroDivisionError"),
        ((one for one in ITEMS), None, "a generator has no length"),
        ([], None, "of 0 items no items are chosen"),
    ],
    ids=["keys", "transform", "generator", "empty"],
)
def test_data_set_that_fails_is_named_with_its_item(dataset, transform, words):
    with pytest.raises((DataError, UsageError), match=words):
        from_dataset(dataset, transform=transform)


def test_picture_in_a_list_damaged_or_of_several_pages_is_refused(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    palette, page = image.new("P", (2, 2)), image.effect_noise((64, 64), 50)
    page.save(tmp_path / "one.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "one.png").read_bytes()[:-900])
    page.save(tmp_path / "pages.tif", save_all=True, append_images=[page])
    with pytest.raises(DataError, match="palette"):
        from_dataset([([palette], 0)])
    for words, name in {"cannot be read": "cut.png", "2 pages": "pages.tif"}.items():
        with image.open(tmp_path / name) as picture, pytest.raises(DataError, match=words):
            from_dataset([(picture, 0)])


def timed(count: int, begin: int = 0, value: str = "") -> str:
    """Lines of a file with a time in whole seconds, and a value for each line or the same for all."""
    lines = (f"{begin + i // 10},{value or begin + i},{CLASSES[i // 20 % 2]}\n" for i in range(count))
    return "time,v,mode\n" + "".join(lines)


def test_equal_readings_of_one_second_are_readings_of_their_own_beside_another_file(tmp_path):
    """A clock of whole seconds, and a coarse sensor: none of them was read twice."""
    (tmp_path / "a.csv").write_text(timed(60, value="21.5"))
    (tmp_path / "b.csv").write_text(timed(60, 1000))
    alone, both = (read_csv(place, ["v"], "mode", CLASSES) for place in (tmp_path / "a.csv", tmp_path))
    assert len(alone) == 60 and len(both) == 120 and both.notes == ()


def test_readings_that_a_joined_log_or_frame_repeats_are_counted_once(tmp_path):
    """Else windows over their copies would be for training and for testing."""
    lines = [f"{i},{i / 8},{CLASSES[i // 4 % 2]}\n" for i in range(12)]
    text = "time,v,mode\n" + "".join(lines[:8]) + "time,v,mode\n" + "".join(lines[5:])
    (tmp_path / "joined.csv").write_text(text)
    frames = [pd.DataFrame({"time": range(*ends), "v": [i / 8 for i in range(*ends)]}) for ends in ((0, 8), (5, 12))]
    frame = pd.concat(frames).assign(mode=lambda found: [CLASSES[i // 4 % 2] for i in found.time])
    for found in (
        read_csv(tmp_path / "joined.csv", ["v"], "mode", CLASSES),
        from_frame(frame, ["v"], "mode", CLASSES, time="time"),
    ):
        assert found.x[:, 0].tolist() == [i / 8 for i in range(12)]
        assert any("readings that stand several times" in one and ": 3, counted once" in one for one in found.notes)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("time,v,mode\n2026-01-01T00:00:00,1,off\n", "its times are dates, those of the other files numbers"),
        ("v,mode\n1,off\n2,on\n", "it has no column of the time, as the other files have"),
        ("time,v,mode\n12:30,1,off\n12:31,1,off\n", "it has no column of the time, as the other files have"),
    ],
    ids=["dates", "no column", "no times"],
)
def test_file_with_other_times_costs_neither_the_other_files_nor_their_times(tmp_path, odd, words):
    """The odd file is the first one."""
    (tmp_path / "1.csv").write_text(odd)
    (tmp_path / "2.csv").write_text(timed(60))
    found = read_csv(tmp_path, ["v"], "mode", CLASSES)
    assert len(found) == 60 and found.times is not None and not found.dates
    assert any("1.csv" in one and words in one for one in found.notes)


def test_file_with_times_beside_more_lines_without_is_read_without_them(tmp_path):
    (tmp_path / "1.csv").write_text("v,mode\n" + "1,off\n2,on\n" * 20)
    (tmp_path / "2.csv").write_text(timed(10))
    found = read_csv(tmp_path, ["v"], "mode", CLASSES)
    assert len(found) == 50 and found.times is None
    assert any("others have none, so that no time is used" in one for one in found.notes)


@pytest.mark.parametrize("first", [",1,off", "half,1,off", "12.5,1,off"], ids=["empty", "damaged", "before the clock"])
def test_first_line_without_a_usable_time_costs_that_line(tmp_path, first):
    """Such as the seconds since the start, until the clock is set."""
    rest = "".join(f"2026-01-01T00:00:{i:02},{i},on\n" for i in range(20))
    (tmp_path / "one.csv").write_text(f"time,v,mode\n{first}\n{rest}")
    found = read_csv(tmp_path / "one.csv", ["v"], "mode", CLASSES)
    assert found.x[:, 0].tolist() == list(range(20)) and found.dates and found.time_text(0) == "2026-01-01T00:00:00Z"
    assert len(found.notes) == 1 and "1, left out" in found.notes[0]


def test_error_of_excel_in_the_first_column_is_no_comment(tmp_path):
    values, targets = table(tmp_path, "v,mode\n1,off\n#N/A,on\n#DIV/0!,on\n# noted by hand\n2,on\n#WERT!,on\n")
    assert math.isnan(values[1]) and (values[0], values[2]) == (1, 2) and targets == [0, 1, 1]
    with pytest.raises(DataError, match=r"'#DIV/0!' is no number; of 4 lines 2 are damaged"):
        table(tmp_path, "v,mode\n1,off\n#DIV/0!,on\n#WERT!,on\n2,on\n", damaged_share=0.2)


def test_header_below_other_lines_is_named_with_its_line(tmp_path):
    with pytest.raises(DataError, match=r"there is Logger 1.2; line 4 has these columns: remove the lines before it"):
        table(tmp_path, "Logger 1.2\nserial,55\n\nv,mode\n1,off\n2,on\n")


def test_file_without_a_header_that_could_be_read_in_two_ways_is_refused(tmp_path):
    """Its second cell is the input after the time, or the target after the input."""
    file = tmp_path / "new.csv"
    file.write_text("0.5,30.9\n0.6,31.4\n")
    with pytest.raises(DataError, match=r"2 cells, .*could be the time or the target; give the file a header line"):
        read(file, ReadingsFormat(["v"], "w"), for_prediction=True)
    assert read(file, ReadingsFormat(["v"]), for_prediction=True).x[:, 0].tolist() == pytest.approx([30.9, 31.4])
    named = ReadingsFormat(["v"], "w", names=["v", "w"])
    assert read(file, named, for_prediction=True).x[:, 0].tolist() == [0.5, pytest.approx(0.6)]


GAP = [*range(20), *range(50, 70)]


@pytest.mark.parametrize("kind", ["column", "dates", "index"])
def test_time_of_a_frame_is_found_as_in_files(kind):
    when = GAP if kind == "column" else pd.to_datetime(GAP, unit="s")
    frame = pd.DataFrame({"v": np.sin(GAP), "mode": "on"}, index=when if kind == "index" else None)
    if kind != "index":
        frame["Time"] = when
    found = windows(from_frame(frame, ["v"], "mode", CLASSES), 10)
    assert len(found) == 22 and found.times is not None and found.dates == (kind != "column")


def test_column_of_a_frame_that_is_only_called_time_is_not_used():
    frame = pd.DataFrame({"v": [1.0, 2.0], "time": ["noon", "night"], "mode": "on"})
    found = from_frame(frame, ["v"], "mode", CLASSES)
    assert len(found) == 2 and found.times is None and "no time is used: 'noon' is no time" in found.notes[0]


@pytest.mark.parametrize(
    ("frame", "arguments", "words"),
    [
        ({"v": ["1,5"], "mode": ["on"]}, {}, 'read it with decimal=","'),
        ({"v": [1.0], "mode": ["1"]}, {"classes": [1, 2]}, r"it is a text here, so give classes as texts"),
        ({"v": [1.5, True], "mode": ["on", "on"]}, {}, "True or False beside other values"),
    ],
)
def test_value_of_a_frame_is_refused_with_a_remedy_for_frames(frame, arguments, words):
    with pytest.raises(DataError, match=words):
        from_frame(pd.DataFrame(frame), ["v"], "mode", **{"classes": CLASSES, **arguments})


def test_index_that_is_asked_for_as_a_column_has_a_remedy():
    frame = pd.DataFrame({"v": [1.0], "mode": ["on"]}, index=pd.Index([0], name="when"))
    with pytest.raises(DataError, match=r"no column 'when'.*it is the index: give frame.reset_index\(\)"):
        from_frame(frame, ["v"], "mode", CLASSES, time="when")


def test_names_of_columns_in_an_array_are_names():
    frame = pd.DataFrame({"v": [1.0, 2.0], "mode": ["on", "off"]})
    assert from_frame(frame, np.array(["v"]), np.str_("mode"), CLASSES).y.tolist() == [1, 0]  # type: ignore[arg-type]
    numbered = frame.set_axis([0, 1], axis=1)
    assert from_frame(numbered, numbered.columns[:1], numbered.columns[1], CLASSES).y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("classes", "text"), [(["0", "1"], "1.0"), (["1", "2"], "01"), (["00", "01"], "1")], ids=["float", "zeros", "none"]
)
def test_class_that_is_another_spelling_of_a_number_is_named(tmp_path, classes, text):
    (tmp_path / "a.csv").write_text(f"v,mode\n5,{text}\n")
    with pytest.raises(DataError, match=rf"'{text}' is none of .*; '\d+' is spelled '{text}' here: use one of them"):
        read_csv(tmp_path / "a.csv", ["v"], "mode", classes)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.full((2, 2), 200, np.uint8), np.full((2, 2), 40000, np.uint16)),
        (np.full((2, 2), 200, np.uint8), np.ones((2, 2), bool)),
        (np.full((2, 2), 200, np.uint8), np.full((2, 2), 0.5, np.float32)),
        ("L", "1"),
    ],
    ids=["16 bit", "masks", "fractions", "1 bit"],
)
def test_pictures_of_different_depths_in_a_data_set_are_refused(one, other):
    if isinstance(one, str):
        image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
        one, other = (image.new(mode, (2, 2), 1) for mode in (one, other))
    for items in ([(one, 0), (other, 1)], [(other, 0), (one, 1)]):
        with pytest.raises(DataError, match=r"item 1: values are .*, those of item 0 .*; scale all alike"):
            from_dataset(items)
    assert len(from_dataset([([0, 1], 0), ([0.5, 1.0], 1), (np.array([1, 2]), 1)])) == 3


def test_floats_whose_last_digits_float32_does_not_hold_are_noted():
    assert "1700000000.5 becomes 1700000000" in from_arrays([[1700000000.5], [0.1]], [0, 1]).notes[0]
    assert from_arrays([[0.1], [2.0**25]], [0, 1]).notes == ()


NAMED = ReadingsFormat(["x", "y"], "mode", CLASSES, time="when", group="who", names=["who", "mode", "when", "x", "y"])


@pytest.mark.parametrize("line", ["ann,on,3,0.5,1", "ann,3,0.5,1", "3,0.5,1", "ann,0.5,1", "0.5,1"])
def test_file_with_named_columns_may_lack_target_group_and_time_in_prediction(tmp_path, line):
    (tmp_path / "new.csv").write_text(f"{line}\n")
    assert read(tmp_path / "new.csv", NAMED, for_prediction=True).x.tolist() == [[0.5, 1]]


def test_file_with_named_columns_that_fits_in_two_ways_is_refused(tmp_path):
    """It lacks the time before the inputs or the person after them."""
    form = ReadingsFormat(["x"], "mode", CLASSES, time="when", group="who", names=["when", "x", "mode", "who"])
    (tmp_path / "new.csv").write_text("3,4\n")
    with pytest.raises(DataError, match=r"2 cells .* each line has when, x, mode, who, and may lack when, mode, who"):
        read(tmp_path / "new.csv", form, for_prediction=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("WHEN,X,Y\n1,2,3\n", "'x' is spelled 'X' in the file"),
        ("when;x;y\n1;2;3\n", "separated by ';': set delimiter=';'"),
    ],
)
def test_header_of_another_spelling_is_named_in_prediction_too(tmp_path, text, words):
    (tmp_path / "new.csv").write_text(text)
    for form in (NAMED, replace(NAMED, names=(), group="")):
        with pytest.raises(DataError, match=words):
            read(tmp_path / "new.csv", form, for_prediction=True)


@pytest.mark.parametrize("missing", ["", "NaN", "NA", "null", "none", "?"])
def test_missing_group_of_a_file_is_missing_in_a_frame_too(tmp_path, missing):
    (tmp_path / "one.csv").write_text(f"who,v,mode\nann,1,on\n{missing},2,on\n")
    frame = pd.DataFrame({"who": ["ann", missing], "v": [1.0, 2.0], "mode": "on"})
    for found in (
        read_csv(tmp_path / "one.csv", ["v"], "mode", CLASSES, group="who"),
        from_frame(frame, ["v"], "mode", CLASSES, group="who"),
    ):
        assert found.groups == ("ann",) and found.notes[0].endswith("s without who: 1, left out")


TWO = ReadingsFormat(["x", "y"], "mode", CLASSES)


@pytest.mark.parametrize(
    ("header", "lines"),
    [
        ("y,x,mode", "7,8,on\n"),
        ("x,temp,mode", "7,8,on\n"),
        ("x,mode,y", "7,8,9\n"),
        ("y, x ,mode", "7,8,on\n"),
    ],
    ids=["order", "name", "target", "blanks"],
)
@pytest.mark.parametrize("named", [True, False])
def test_file_whose_columns_change_below_another_header_is_refused(tmp_path, header, lines, named):
    """A new program of the logger, or a joined file: its values would be read as those of other columns."""
    first = "x,y,mode\n" if named else ""
    (tmp_path / "one.csv").write_text(first + "1,2,off\n" * 20 + f"{header}\n{lines}")
    form = TWO if named else replace(TWO, names=["x", "y", "mode"])
    with pytest.raises(DataError, match=rf"line {21 + named} names other columns .* begin a new file with this line"):
        read(tmp_path / "one.csv", form)


def test_file_whose_time_changes_its_place_below_another_header_is_refused(tmp_path):
    lines = "".join(f"{i},{i % 3},{i % 5},off\n" for i in range(20))
    (tmp_path / "one.csv").write_text(f"time,beat,v,mode\n{lines}beat,time,v,mode\n{lines}")
    with pytest.raises(DataError, match="line 22 names other columns"):
        read_csv(tmp_path / "one.csv", ["v"], "mode", CLASSES)


@pytest.mark.parametrize("line", ["x,y,mode", "x,?,mode", "x,y", "warm,cold,on", "x,0.5,on", ",,on"])
def test_damaged_header_among_the_lines_costs_that_line(tmp_path, line):
    (tmp_path / "one.csv").write_text("x,y,mode\n" + "1,2,off\n" * 9 + f"{line}\n3,4,on\n")
    assert read(tmp_path / "one.csv", TWO).x[-1].tolist() == [3, 4]


@pytest.mark.parametrize("text", ["y,x,state\n", "temp,hum,mode\n", "temp,hum,state\n"])
def test_header_of_other_columns_is_not_taken_for_a_damaged_line(tmp_path, text):
    """The columns would be read by their position."""
    (tmp_path / "one.csv").write_text(text + "1,2,off\n" * 9)
    with pytest.raises(DataError, match=rf"its first line has {', '.join(text.strip().split(','))}, no values of x, y"):
        read(tmp_path / "one.csv", replace(TWO, names=["x", "y", "mode"]))
    for names in ((), ("x", "y", "mode")):
        (tmp_path / "new.csv").write_text("temp,hum\n" + "1,2\n" * 9)
        with pytest.raises(DataError, match="its first line has temp, hum, no values of x, y; write these names"):
            read(tmp_path / "new.csv", replace(TWO, names=names), for_prediction=True)


@pytest.mark.parametrize("first", ["warm,0.5,on", "err,err,on", "?,,off", "5,on", "1,2,off,1", "1,2,of1,2,off"])
def test_damaged_first_line_of_a_file_without_a_header_costs_that_line(tmp_path, first):
    (tmp_path / "one.csv").write_text(f"{first}\n" + "1,2,off\n" * 9)
    found = read(tmp_path / "one.csv", replace(TWO, names=["x", "y", "mode"]))
    assert found.x[-9:].tolist() == [[1, 2]] * 9


@pytest.mark.parametrize("first", ["5", "2,off", "8,9,off", "1,2,off,", "3,1,2,off,4"])
@pytest.mark.parametrize("names", [(), ("when", "x", "y", "mode")], ids=["order", "names"])
def test_cut_first_line_of_a_file_for_prediction_costs_that_line(tmp_path, first, names):
    """Its number of cells would make the columns others, such as inputs and target without the time."""
    (tmp_path / "new.csv").write_text(f"{first}\n" + "".join(f"{i},1,2,off\n" for i in range(20)))
    found = read(tmp_path / "new.csv", replace(TWO, time="when", names=names), for_prediction=True)
    assert found.x.tolist() == [[1, 2]] * 20 and found.times is not None and found.times.tolist() == list(range(20))
    assert "lines damaged: 1, left out, of 21" in found.notes[0]


@pytest.mark.parametrize(
    ("line", "mark"), [("1,5;2,25;off", ";"), ("1.5;2.25;off", ";"), ("1.5\t2.25\toff", "\t"), ("1.5 2.25 off", " ")]
)
@pytest.mark.parametrize("for_prediction", [False, True])
def test_file_without_a_header_of_another_separator_has_the_remedy(tmp_path, line, mark, for_prediction):
    (tmp_path / "one.csv").write_text(f"{line}\n" * 9)
    form = replace(TWO, names=["x", "y", "mode"])
    with pytest.raises(DataError, match=f"set delimiter={re.escape(repr(mark))}"):
        read(tmp_path / "one.csv", form, for_prediction=for_prediction)
    right = replace(form, delimiter=mark, decimal="," if "," in line else ".")
    assert read(tmp_path / "one.csv", right, for_prediction=for_prediction).x[0].tolist() == [1.5, 2.25]


def test_input_that_is_called_time_keeps_its_place_without_a_header(tmp_path):
    (tmp_path / "new.csv").write_text("5,7,0.5\n")
    form = ReadingsFormat(["time", "x"], "mode", CLASSES)
    assert read(tmp_path / "new.csv", form, for_prediction=True).x.tolist() == [[7, 0.5]]
