"""Lines of keys in TOML text, and values written as TOML."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from shared.toml_text import key_lines, toml_value

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
    """Whatever stands before it: comments, text over several lines, nested arrays, tables."""
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
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
def test_a_value_written_is_read_back(value):
    """As the same value of the same type."""
    read = tomllib.loads(f"x = {toml_value(value)}")["x"]
    assert (type(read), read) == (type(value), value)
