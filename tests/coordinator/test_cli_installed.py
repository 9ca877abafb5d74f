"""Commands of `fedpatch` that other packages bring."""

from __future__ import annotations

import pytest

from tests.programs import Ended, install


def test_commands_of_other_packages_are_found_as_entry_points(fedpatch, tmp_path, monkeypatch):
    """They are called and listed like `fedpatch`'s own; an own command is hidden by none of them."""
    lines = (
        "import typer",
        "from shared.errors import UsageError",
        "app = typer.Typer(add_completion=False)",
        "@app.command()",
        "def lamp(watts: int) -> None:",
        "    'Light a lamp.'",
        "    if watts > 9: raise UsageError('too bright')",
        "    typer.echo(f'{watts} W')",
    )
    (tmp_path / "lamp_commands.py").write_text("\n".join(lines))
    install("[fedpatch.commands]\nlamp = lamp_commands:app\nruns = lamp_commands:app\n", tmp_path, monkeypatch)
    assert fedpatch("lamp", "5") == Ended(0, "5 W\n", "")
    assert fedpatch("lamp", "50") == Ended(2, "", "fedpatch: too bright\n")
    listed = fedpatch("--help").out
    assert "Light a lamp." in listed and "List all runs" in listed


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ("lamp = no_such_module:app", "no_such_module:app cannot be loaded: ModuleNotFoundError"),
        ("lamp = json:no_such_app", "json:no_such_app cannot be loaded: AttributeError"),
        ("lamp = json:dumps", "json:dumps is of type function, not a typer.Typer"),
    ],
)
def test_a_command_that_cannot_be_loaded_says_why_when_it_is_called(fedpatch, tmp_path, monkeypatch, points, words):
    """Whatever it is called with; the others and the list of all of them are not hindered by it."""
    install(f"[fedpatch.commands]\n{points}\n", tmp_path, monkeypatch)
    for argv in ((), ("--help",), ("--watts", "5", "on")):
        ended = fedpatch("lamp", *argv)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"fedpatch: the command 'lamp' cannot be used: {words}")
    assert fedpatch("strategies").code == 0
    assert "lamp" in fedpatch("--help").out


def test_a_command_that_two_packages_have_is_neithers(fedpatch, tmp_path, monkeypatch):
    """Which one was meant is not guessed."""
    install("[fedpatch.commands]\nsimulate = json:dumps\n", tmp_path, monkeypatch)
    ended = fedpatch("simulate", "--rounds", "3")
    assert (ended.code, ended.out) == (2, "")
    assert "installed more than once, as json:dumps and simulator.cli:app" in ended.err
