"""Settings that are lists of texts: arrays in a file, commas elsewhere."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedpatch.shared.config.fields import NAME, Settings, setting, settings_of
from fedpatch.shared.config.load import cli_options, load, public_values, to_toml
from fedpatch.shared.errors import ConfigError
from scripts.reference.configuration import reference


@dataclass(frozen=True, kw_only=True)
class Pizza(Settings):
    """Lists of each kind."""

    toppings: tuple[str, ...] = setting(("cheese", "basil"), help="What is on it.")
    guests: tuple[str, ...] = setting((), pattern=NAME, default_means="nobody", help="Who eats.")
    cuts: tuple[str, ...] = setting((), choices=("half", "quarter"), help="In which pieces.")


def loaded(text: str = "", environ: dict[str, str] | None = None, **flags: object) -> Pizza:
    """Load settings from a file, variables and options."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pizza.toml"
        file.write_text(text, "utf-8")
        return load(Pizza, file=file, environ=environ or {}, flags=flags)


def problem(text: str = "", environ: dict[str, str] | None = None, **flags: object) -> str:
    """The problem of a wrong list, without the folder of the file."""
    with pytest.raises(ConfigError) as caught:
        loaded(text, environ, **flags)
    (found,) = caught.value.problems
    return found[max(0, found.find("pizza.toml")) :]


@pytest.mark.parametrize(
    ("text", "environ", "flags", "toppings"),
    [
        ('toppings = ["ham, smoked",\n  "olives",\n]\n', {}, {}, ("ham, smoked", "olives")),
        ("toppings = []", {}, {}, ()),
        ("", {"FEDPATCH_TOPPINGS": "ham, olives"}, {}, ("ham", "olives")),
        ("", {"FEDPATCH_TOPPINGS": ""}, {}, ("cheese", "basil")),
        ("", {}, {"toppings": "ham,olives,"}, ("ham", "olives")),
        ("", {}, {"toppings": ""}, ()),
    ],
)
def test_list_is_an_array_in_a_file_and_texts_between_commas_elsewhere(text, environ, flags, toppings):
    assert loaded(text, environ, **flags).toppings == toppings


@pytest.mark.parametrize("value", ['"ham"', "7", '["ham", 7]', "[[]]"])
def test_anything_else_in_a_file_is_refused(value):
    found = problem(f"\ntoppings = {value}")
    assert found.startswith("pizza.toml:2: toppings: expected texts in quotes between [ and ], got ")


def test_every_entry_keeps_to_the_rules():
    assert problem('guests = ["ada", "Bob"]') == f"pizza.toml:1: guests: 'Bob' must be {NAME.words}"
    assert problem(cuts="half,quater").startswith("--cuts: unknown value 'quater'; did you mean 'quarter'?")
    assert problem('toppings = ["a\\u0000"]').endswith("is not text (it holds a zero byte or is not UTF-8)")


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(TEXTS, max_size=4).map(tuple))
def test_printed_and_stored_lists_load_unchanged(toppings):
    pizza = Pizza(toppings=toppings)
    assert loaded(to_toml(pizza)) == pizza
    assert load(Pizza, file=None, environ={}, flags=public_values(pizza)) == pizza


def test_reference_has_default_and_rule_of_each_entry():
    page = reference(Pizza)
    assert "- `toppings` (`cheese, basil`): What is on it\n" in page
    assert "- `guests` (nobody): Who eats (each name)\n" in page
    assert "- `cuts` (`empty`): In which pieces (each half, quarter)" in page


def test_a_list_has_an_option():
    app = typer.Typer()
    calls = []

    @app.command()
    @cli_options(Pizza)
    def bake(settings: Pizza, hot: Annotated[bool, typer.Option()] = True) -> None:
        calls.append(settings)

    CliRunner().invoke(app, ["--guests", "ada,bob"])
    assert calls == [Pizza(guests=("ada", "bob"))]
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
    assert "TEXT,..." in shown


def test_a_setting_that_nobody_could_give_is_a_mistake_of_ours():
    @dataclass(frozen=True, kw_only=True)
    class Numbers(Settings):
        plates: tuple[int, ...] = setting((1, 2), help="How many.")

    with pytest.raises(TypeError, match="plates: a setting cannot be of type tuple"):
        settings_of(Numbers)
    with pytest.raises(TypeError, match="a required setting needs an example"):
        setting(help="Who is coming.")
