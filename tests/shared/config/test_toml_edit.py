"""Lines of keys in TOML text, and values written as TOML."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.config.toml_edit import key_lines, toml_value, with_values

KEYS = st.sampled_from(["a", "b-c", "'d e'", '"f\\u0041"', '"#=["', "1", 'g . "h=]"', "[i]", "[[j]]", "[k.'l]#']"])
VALUES = st.sampled_from(
    [
        "1",
        "'#'",
        '"\\"#" # "',
        '""',
        "''",
        "[1, # ]\n [2, 3]]",
        '"""\nz = 1\n\\""" ["""',
        "'''\nz = 1\n'' '''",
        '"""ends with two""" # x',
        '"""ends with one""""',
        '"""ends with two"""""',
        "'''ends with one''''",
        "{ x = '}', y = [1] }",
        "1979-05-27T07:32:00Z",
        "[\n'''\n]''',\n]",
    ]
)
GAPS = st.sampled_from(["", "\n", "# a = 1\n", "  \t", " \n\n# '''\n\t"])


@given(st.lists(st.tuples(GAPS, KEYS, VALUES), max_size=6, unique_by=lambda entry: entry[1]), st.booleans())
def test_every_top_level_key_is_found_on_its_line(entries, windows):
    text, in_table = "", False
    expected: dict[str, int] = {}
    for gap, key, value in entries:
        text += gap
        line = text.count("\n") + 1
        is_table = key.startswith("[")
        text += f"{key}\n" if is_table else f"{key} = {value}\n"
        if is_table or not in_table:
            name = next(iter(tomllib.loads(key if is_table else f"{key} = 0")))
            expected.setdefault(name, line)
        in_table = in_table or is_table
    assert expected.keys() == tomllib.loads(text).keys()
    assert key_lines(text.replace("\n", "\r\n") if windows else text) == expected


@given(
    st.lists(st.tuples(GAPS, KEYS, VALUES), max_size=6, unique_by=lambda entry: entry[1]),
    st.dictionaries(st.sampled_from(["a", "b-c", "1", "new", "newer"]), st.text('ab"\\\n#', max_size=4), max_size=4),
    st.sets(st.sampled_from(["d e", "f\u0041", "none"])),
)
def test_values_that_are_put_in_are_there_and_nothing_else_has_changed(entries, values, without):
    """A value replaces the old one or is added before the first table; keys in `without` are gone; comments stay."""
    text = ""
    in_table = False
    for gap, key, value in entries:
        in_table = in_table or key.startswith("[")
        text += gap + (f"{key}\n" if key.startswith("[") else f"{key} = {value}\n")
    changed = with_values(text, values, without)
    kept = {key: value for key, value in tomllib.loads(text).items() if key not in without}
    assert tomllib.loads(changed) == {**kept, **values}
    assert [line for line in changed.splitlines() if line.startswith("# a")] == [
        line for line in text.splitlines() if line.startswith("# a")
    ]
    assert with_values(changed, values, without) == changed


def test_a_key_that_is_a_table_is_not_made_a_value_and_does_not_go():
    with pytest.raises(ValueError, match="overwrite"):
        with_values("[broker]\nurl = 1\n", {"broker": "mqtts://there"})
    with pytest.raises(ValueError, match="its keys are ambiguous"):
        with_values("[broker]\nurl = 1\n", {}, {"broker"})


@given(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
def test_a_value_written_is_read_back(value):
    read = tomllib.loads(f"x = {toml_value(value)}")["x"]
    assert (type(read), read) == (type(value), value)
