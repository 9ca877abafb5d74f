"""Settings from defaults, a file, the environment and flags: their precedence, and the reports of mistakes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.config.fields import NAME, Settings, setting
from fedpatch.shared.config.load import load, load_with_origins, public_values, to_toml
from fedpatch.shared.errors import ConfigError
from tests.support.other_users import acting_as_nobody, open_directory


@dataclass(frozen=True, kw_only=True)
class Oven(Settings):
    """Settings of every kind."""

    env_prefix: ClassVar[str] = "OVEN_"

    dish: str = setting("bread", help="What to bake.")
    fleet: str = setting("default", pattern=NAME, help="Which kitchen.")
    mode: str = setting("fan", choices=("fan", "grill", "steam"), help="How to heat.")
    trays: int = setting(1, ge=1, le=4, help="How many.")
    share: float = setting(0.5, gt=0.0, le=1.0, help="How full.")
    light: bool = setting(True, help="Whether one can see it.")
    book: Path = setting(Path("recipes"), help="Where the recipes are.")
    limit_s: float | None = setting(None, gt=0.0, help="When to stop.")
    target: float | None = setting(0.9, help="How brown.")
    cook: str | None = setting(None, help="Who.")
    key: str | None = setting(None, secret=True, help="Opens the door.")

    def check(self) -> list[tuple[str, ...]]:
        """A full oven bakes one tray only."""
        return [("trays", "too many for a full oven")] if self.share == 1.0 and self.trays > 1 else []


@dataclass(frozen=True, kw_only=True)
class Guest(Settings):
    """Settings, one of which has no default."""

    name: str = setting(example="ada", pattern=NAME, help="Who is coming.")
    chairs: int = setting(1, ge=1, help="How many.")
    tables: int = setting(1, ge=1, help="How many.")

    def check(self) -> list[tuple[str, ...]]:
        """There are at least as many chairs as tables."""
        return [("chairs", "fewer than tables", "tables")] if self.chairs < self.tables else []


@dataclass(frozen=True, kw_only=True)
class Stove(Settings):
    """Settings of which an earlier version had one more."""

    env_prefix: ClassVar[str] = "STOVE_"
    former: ClassVar[Mapping[str, str]] = {"plate": "has no effect, since each stove has all plates; delete it"}

    plates: int = setting(4, help="How many.")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A relative file name, as a user types it, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    return Path("oven.toml")


def problems(cls=Oven, *, file=None, text=None, environ=None, **flags) -> list[str]:
    """The problems of a wrong configuration."""
    if text is not None:
        file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load(cls, file=file, environ=environ or {}, flags=flags)
    return list(caught.value.problems)


def from_file(file: Path, text: str, cls=Oven):
    """Settings of a file alone."""
    file.write_text(text, "utf-8")
    return load(cls, file=file, environ={}, flags={})


@pytest.mark.parametrize("environ", [{}, {"OVEN_TRAYS": ""}, {"OVEN_DOOR_COUNT": "2", "trays": "3"}], ids=str)
def test_environment_without_a_value_of_ours_gives_the_defaults(environ):
    assert load(Oven, file=None, environ=environ, flags={}) == Oven()


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(file):
    file.write_text("trays = 2\nshare = 0.2\nlight = false\n")
    loaded = load_with_origins(
        Oven, file=file, environ={"OVEN_SHARE": "0.3", "OVEN_LIGHT": "yes"}, flags={"light": False, "trays": None}
    )
    assert loaded.settings == Oven(trays=2, share=0.3, light=False)
    places = {name: loaded.origins[name].place for name in ("dish", "trays", "share", "light")}
    assert places == {"dish": "default", "trays": "oven.toml:1", "share": "$OVEN_SHARE", "light": "--light"}


def test_setting_of_an_earlier_version_is_one_warning_in_each_place_and_changes_nothing(file, caplog):
    file.write_text("plates = 2\nplate = 'left'\n")
    assert load(Stove, file=file, environ={"STOVE_PLATE": "1"}, flags={"plate": 3}) == Stove(plates=2)
    words = "has no effect, since each stove has all plates; delete it"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"oven.toml:2: plate: {words}"),
        ("WARNING", f"$STOVE_PLATE: {words}"),
        ("WARNING", f"--plate: {words}"),
    ]


def test_problems_of_all_sources_are_reported_together_with_their_place(file):
    text = '# my oven\ntrays = 9\n\n"tryas" = 1\nlight = "on"\n[preferences]\nshare = 2\n'
    assert problems(file=file, text=text, environ={"OVEN_SHARE": "1.5"}, mode="fann", dish="x") == [
        "oven.toml:2: trays: 9 is above 4",
        "oven.toml:4: tryas: unknown setting; did you mean trays?",
        "oven.toml:5: light: expected true or false, got the text 'on'",
        "oven.toml:6: [preferences]: settings have no sections; delete this line; share then count",
        "oven.toml:7: share: 2 is above 1",
        "$OVEN_SHARE: 1.5 is above 1",
        "--mode: unknown value 'fann'; did you mean 'fan'? (known: fan, grill, steam)",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trays = 1.0", "trays: expected a whole number, got the number 1"),
        ("trays = true", "trays: expected a whole number, got true"),
        ("trays = 0", "trays: 0 is below 1"),
        ("share = 0", "share: 0 is not above 0"),
        ("share = nan", "share: is not a finite number"),
        ("share = -inf", "share: is not a finite number"),
        (f"share = 1{'0' * 400}", "share: is not a finite number"),
        (f"trays = 0x{'f' * 5000}", "trays: a number of 20000 bits is above 4"),
        ("dish = 3", "dish: expected a text in quotes, got the number 3"),
        ("dish = 1979-05-27", "dish: expected a text in quotes, got a date or time"),
        ("dish = ['a']", "dish: expected a text in quotes, got an array"),
        ("dish.big = 1", "dish: expected a text in quotes, got a table"),
        ('dish = "a\\u0000"', "dish: is not text (it holds a zero byte or is not UTF-8)"),
        ("book = false", "book: expected a path in quotes, got false"),
        ('book = ""', "book: is empty; expected a path"),
        ("fleet = 'My Fleet'", f"fleet: 'My Fleet' must be {NAME.words}"),
        ("key = 4711", "key: expected a text in quotes, got something else"),
        ("light = 1", "light: expected true or false, got the number 1"),
    ],
)
def test_wrong_value_is_reported_with_the_expected_form(file, line, expected):
    assert problems(file=file, text=line + "\n") == [f"oven.toml:1: {expected}"]


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("TRAYS", "two", "expected a whole number, got 'two'"),
        ("TRAYS", "1.5", "expected a whole number, got '1.5'"),
        ("SHARE", "inf", "is not a finite number"),
        ("LIGHT", "perhaps", "expected true or false, got 'perhaps'"),
        ("DISH", "\udcff", "is not text (it holds a zero byte or is not UTF-8)"),
        ("TRAY", "2", "unknown variable; did you mean $OVEN_TRAYS?"),
        (
            "BOOK",
            '"/srv/log"',
            "is in quotation marks, which belong to the value in a file of docker's --env-file; take them out",
        ),
        (
            "DISH",
            "'cake'",
            "is in quotation marks, which belong to the value in a file of docker's --env-file; take them out",
        ),
        ("BOOK", "/srv/log\r", "ends with a line end; take it out (dos2unix: it is of a file of Windows)"),
        ("KEY", "s3cret\r", "ends with a line end; take it out (dos2unix: it is of a file of Windows)"),
    ],
)
def test_wrong_environment_variable_is_named(variable, text, expected):
    assert problems(environ={f"OVEN_{variable}": text}) == [f"$OVEN_{variable}: {expected}"]


def test_quotation_marks_belong_to_a_secret():
    assert load(Oven, file=None, environ={"OVEN_KEY": '"s3cret"'}, flags={}).key == '"s3cret"'


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("share = 1", "share", 1.0),
        ('target = "none"', "target", None),
        ('book = "~/recipes"', "book", Path("/home/ada/recipes")),
    ],
)
def test_value_in_a_file_becomes_that_of_the_setting(file, monkeypatch, line, name, value):
    monkeypatch.setenv("HOME", "/home/ada")
    found = getattr(from_file(file, line), name)
    assert (type(found), found) == (type(value), value)


def test_none_takes_the_value_of_an_optional_setting_away():
    """A password may be `none`: otherwise a user would log in without a password unawares."""
    assert load(Oven, file=None, environ={"OVEN_TARGET": "none"}, flags={}).target is None
    assert load(Oven, file=None, environ={}, flags={"target": "none"}).target is None
    assert load(Oven, file=None, environ={"OVEN_KEY": "none"}, flags={}).key == "none"
    assert problems(trays="none") == ["--trays: expected a whole number, got 'none'"]


def test_conflicting_fields_are_reported_at_the_source_of_the_value(file):
    assert problems(file=file, text="share = 1\n\ntrays = 2\n") == ["oven.toml:3: trays: too many for a full oven"]
    assert problems(environ={"OVEN_SHARE": "1"}, trays="3") == ["--trays: too many for a full oven"]


def test_fields_are_not_held_against_one_that_is_wrong_itself(file):
    assert problems(Guest, name="ada", tables="two") == ["--tables: expected a whole number, got 'two'"]


def test_missing_required_setting_is_reported_with_an_example(file):
    assert problems(Guest, file=file, text="tables = 2\n") == [
        'name: not set; say who is coming, e.g. name = "ada"',
        "chairs: fewer than tables",
    ]
    assert load(Guest, file=None, environ={"FEDPATCH_NAME": "bob"}, flags={}) == Guest(name="bob")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trays = 1\nshare = = 2\n", "oven.toml:2: not TOML: Invalid value (column 9)"),
        ("trays = 1\ntrays = 2\n", "oven.toml:2: not TOML: trays is set a second time; keep one of its lines"),
        (
            "[oven]\n[grill]\n[oven]\n",
            "oven.toml:3: not TOML: [oven] is there a second time; settings have no sections, so delete both lines",
        ),
        ("trays = 1\n\nshare = ", "oven.toml:3: not TOML: Invalid value at the end of the file"),
    ],
)
def test_syntax_error_is_reported_with_its_line(file, text, expected):
    assert problems(file=file, text=text, trays="9") == [expected, "--trays: 9 is above 4"]


def test_key_that_a_section_sets_again_is_reported_with_both_sections(file):
    text = "trays = 1\n[oven]\ntrays = 1\nshare = 0.5\n[grill]\nshare = 0.5\n"
    assert problems(file=file, text=text) == [
        "oven.toml:2: [oven]: settings have no sections; delete this line; trays, share then count",
        "oven.toml:3: trays: is set a second time; keep one of its lines",
        "oven.toml:5: [grill]: settings have no sections; delete this line; share then count",
        "oven.toml:6: share: is set a second time; keep one of its lines",
    ]


@pytest.mark.parametrize("key", ["a." * 100 + "a = 1", "[" + "a . " * 100 + "a]", "x = {" + '"a".' * 100 + "a = 1}"])
def test_key_of_more_parts_than_the_limit_is_reported_before_the_file_is_decoded(file, key):
    assert problems(file=file, text=f"trays = 1\n{key}\n") == [
        "oven.toml: cannot be read: line 2: a key has more than 100 parts; shorten it"
    ]


def test_unreadable_settings_file_is_reported(file):
    assert problems(file=file) == ["oven.toml: no such file; correct this path"]
    assert problems(file=file / "x") == ["oven.toml/x: no such file; correct this path"]
    file.write_bytes(b"trays = 2\ndish = '\xff'\n")
    assert problems(file=file) == ["oven.toml:2: is not UTF-8 text; save it as UTF-8"]
    assert problems(file=file / "x") == ["oven.toml/x: cannot be read: Not a directory; correct this path"]
    assert problems(file=Path.cwd()) == [f"{Path.cwd()}: is a directory; give a configuration file"]


def test_settings_file_of_another_user_is_reported_with_the_way_to_read_it():
    with open_directory() as directory:
        path = directory / "oven.toml"
        path.touch(mode=0o600)
        with acting_as_nobody():
            (found,) = problems(file=path)
    assert found.startswith(f"{path}: cannot be read: Permission denied; let this user read it (sudo chown nobody")
    assert "run as its owner (sudo -u root)" in found


def test_path_below_a_home_that_this_user_lacks_is_reported_with_the_remedy():
    with pytest.raises(ConfigError, match=r"no home directory for ~; write an absolute path, or set HOME"):
        load(Oven, file=None, environ={"OVEN_BOOK": "~nobody-here/log"}, flags={})


def test_setting_that_an_unreadable_file_may_set_is_not_reported_as_missing(file):
    with pytest.raises(ConfigError) as error:
        load(Guest, file=file, environ={}, flags={"chairs": "0"})
    assert list(error.value.problems) == ["oven.toml: no such file; correct this path", "--chairs: 0 is below 1"]


def test_a_file_from_windows_is_read(file):
    file.write_bytes(b"\xef\xbb\xbftrays = 2\r\n# x\r\nshare = 3\r\n")
    assert problems(file=file) == ["oven.toml:3: share: 3 is above 1"]


def texts() -> st.SearchStrategy[str]:
    """Any text that a setting can hold."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    return st.text(characters).filter(lambda text: text != "none")


OVENS = st.builds(
    Oven,
    dish=texts(),
    mode=st.sampled_from(["fan", "grill", "steam"]),
    trays=st.just(1),
    share=st.floats(0.0, 1.0, exclude_min=True),
    light=st.booleans(),
    book=texts().map(lambda text: Path("books") / text.replace("/", "_")),
    limit_s=st.none() | st.floats(0.0, exclude_min=True, allow_infinity=False),
    target=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    cook=st.none() | texts(),
    key=st.none() | st.just("s3cret!"),
)


@given(OVENS)
def test_printed_settings_load_unchanged_except_for_secrets(oven):
    text = to_toml(oven)
    assert "s3cret!" not in text
    with tempfile.TemporaryDirectory() as folder:
        assert public_values(from_file(Path(folder) / "oven.toml", text)) == public_values(oven)


@given(OVENS)
def test_public_values_load_back_to_the_same(oven):
    stored = public_values(oven)
    assert "key" not in stored
    assert public_values(load(Oven, file=None, environ={}, flags=stored)) == stored


def test_printed_settings_name_the_source_of_each_value(file):
    file.write_text("trays = 2\n")
    loaded = load_with_origins(Oven, file=file, environ={"OVEN_KEY": "s3cret!"}, flags={"share": "0.25"})
    lines = to_toml(loaded.settings, loaded.origins).splitlines()
    for line in (
        'dish = "bread"  # default',
        "trays = 2  # oven.toml:1",
        "share = 0.25  # --share",
        '# key = "***"  # $OVEN_KEY',
        "# cook is not set  # default",
    ):
        assert line in lines


def test_a_secret_is_not_in_the_repr():
    assert "s3cret!" not in repr(Oven(key="s3cret!"))


@given(st.floats() | st.integers() | st.text() | st.booleans() | st.lists(st.integers()))
def test_any_value_is_taken_or_refused_in_words(value):
    try:
        oven = load(Oven, file=None, environ={}, flags={"share": value})
    except ConfigError as error:
        assert all(problem.startswith("--share: ") for problem in error.problems)
    else:
        assert 0 < oven.share <= 1 and math.isfinite(oven.share)
