"""Options of a command, made from a settings class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from fedpatch.shared.config.fields import Settings, setting
from fedpatch.shared.config.load import cli_options
from fedpatch.shared.errors import ConfigError

WIDE = {"COLUMNS": "300", "TERM": "dumb"}


@dataclass(frozen=True, kw_only=True)
class Lamp(Settings):
    """A few settings in two groups."""

    watts: float = setting(40.0, group="Light", unit="watts", gt=0.0, le=100.0, help="How bright.")
    colour: str | None = setting(None, group="Light", default_means="the bulb's", help="Which colour.")
    dim_down: bool = setting(False, group="Comfort", help="Whether to go slowly.")
    key: str | None = setting(None, group="Comfort", secret=True, help="Turns it on.")


def lamp_command(calls: list) -> typer.Typer:
    """Return a program with one command, which appends its arguments to `calls`."""
    app = typer.Typer()

    @app.command()
    @cli_options(Lamp)
    def light(
        room: Annotated[str, typer.Argument(help="Where.")],
        settings: Lamp,
        times: Annotated[int, typer.Option(help="How often.")] = 1,
    ) -> None:
        """Switch a lamp on."""
        calls.append((room, settings, times))

    return app


@pytest.fixture
def invoke():
    """Run the command; return its result and the recorded call, if there is one."""
    calls: list = []
    app = lamp_command(calls)

    def run(*argv: str, **environ: str):
        calls.clear()
        result = CliRunner().invoke(app, list(argv), env={**WIDE, **environ})
        return result, calls[0] if calls else None

    return run


def test_every_option_reaches_the_settings_and_the_commands_own_parameters_stay(invoke):
    _, call = invoke("hall", "--watts", "60", "--dim-down", "--times", "2", "--colour", "red")
    assert call == ("hall", Lamp(watts=60.0, dim_down=True, colour="red"), 2)


def test_without_options_everything_is_the_default(invoke):
    assert invoke("hall")[1] == ("hall", Lamp(), 1)


def test_an_option_wins_over_the_environment_over_the_file(invoke, tmp_path):
    file = tmp_path / "lamp.toml"
    file.write_text("watts = 10\ndim_down = true\ncolour = 'red'\n")
    _, call = invoke("hall", "--config", str(file), "--no-dim-down", FEDPATCH_WATTS="20", FEDPATCH_KEY="k")
    assert call == ("hall", Lamp(watts=20.0, dim_down=False, colour="red", key="k"), 1)


def test_wrong_options_are_reported_together(invoke):
    result, call = invoke("hall", "--watts", "bright", "--colour", "a\0", FEDPATCH_DIM_DOWN="2")
    assert call is None
    assert isinstance(result.exception, ConfigError)
    assert result.exception.problems == (
        "$FEDPATCH_DIM_DOWN: expected true or false, got '2'",
        "--watts: expected a number, got 'bright'",
        "--colour: is not text (it holds a zero byte or is not UTF-8)",
    )


def test_a_secret_has_no_option(invoke):
    """All users of a machine can read the command lines of its processes."""
    result, _ = invoke("hall", "--key", "s3cret!")
    assert result.exit_code == 2
    assert "--key" not in invoke("--help")[0].output


def test_print_config_shows_the_settings_and_does_nothing_else(invoke):
    result, call = invoke("hall", "--watts", "60", "--print-config", FEDPATCH_KEY="s3cret!")
    assert (result.exit_code, call) == (0, None)
    assert result.output.splitlines() == [
        "# Light",
        "watts = 60.0  # --watts",
        "# colour is not set  # default",
        "",
        "# Comfort",
        "dim_down = false  # default",
        '# key = "***"  # $FEDPATCH_KEY',
    ]


def test_help_describes_each_option(invoke):
    output = invoke("--help")[0].output
    assert "Switch a lamp on." in output
    for part in ("Light", "--watts", "WATTS", "How bright. (above 0, at most 100; default: 40.0; env: FEDPATCH_WATTS)"):
        assert part in output
    assert "Which colour. (default: the bulb's; env: FEDPATCH_COLOUR)" in output
    assert "--no-dim-down" in output


@dataclass(frozen=True, kw_only=True)
class Dimmer(Lamp):
    """A lamp whose common setting is its power."""

    common: ClassVar[frozenset[str]] = frozenset({"watts"})


def test_options_of_settings_that_are_not_common_are_rare_except_secrets():
    @cli_options(Dimmer)
    def light(settings: Dimmer, times: int = 1) -> None:
        """Switch a lamp on."""

    assert light.__dict__["rare_options"] == {"colour", "dim_down"}


def test_no_option_is_rare_where_a_class_names_no_common_setting():
    @cli_options(Lamp)
    def light(settings: Lamp) -> None:
        """Switch a lamp on."""

    assert light.__dict__["rare_options"] == frozenset()
