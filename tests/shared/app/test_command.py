"""Errors, logs and --version of every command line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer

from fedpatch.shared import __version__
from fedpatch.shared.app.command import command, make_app, option, run_app, with_options
from fedpatch.shared.errors import BrokerError, ConfigError, DataError, FedpatchError, UsageError
from tests.support.programs import Ended, Program

log = logging.getLogger("fedpatch.lamp")


@pytest.fixture
def lamp(monkeypatch, capsys) -> Callable[..., Ended]:
    """A program `lamp on` and `lamp off`, with a configurable `on`."""

    def program(deed: Callable[[], None], *argv: str) -> Ended:
        app = make_app("lamp", "A lamp.")

        @command(app, "on", example="lamp on")
        def on() -> None:
            """Switch it on."""
            deed()

        @command(app, "off", example="lamp off")
        def off() -> None:
            """Switch it off."""

        return Program(lambda: run_app(app, "lamp"), monkeypatch, capsys)(*argv)

    return program


def failing(error: BaseException) -> Callable[[], None]:
    """Return a function that raises `error`."""

    def deed() -> None:
        raise error

    return deed


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (FedpatchError("no"), 1, "lamp: no\n"),
        (DataError("no"), 1, "lamp: no\n"),
        (UsageError("no"), 2, "lamp: no\n"),
        (BrokerError("no"), 3, "lamp: no\n"),
        (
            ConfigError(["--watts: 9 is too many", "a.toml:3: no"]),
            2,
            "lamp: --watts: 9 is too many\nlamp: a.toml:3: no\n",
        ),
        (FileNotFoundError(2, "No such file", "/bulb"), 1, "lamp: /bulb: No such file\n"),
    ],
)
def test_error_is_printed_on_stderr_and_sets_the_exit_code(lamp, error, code, printed):
    assert lamp(failing(error), "on") == Ended(code, "", printed)


def test_path_of_a_user_without_a_home_directory_is_a_wrong_option(lamp):
    """As in a container with --user, or in an environment file, in which no shell replaces ~."""
    printed = "lamp: a path begins with ~, and its user has no home directory; write an absolute path, or set HOME\n"
    ended = lamp(lambda: Path("~no-such-user/lamp").expanduser(), "on")
    assert ended == Ended(UsageError.exit_code, "", printed)


def test_other_runtime_error_has_its_traceback(lamp):
    with pytest.raises(RuntimeError, match="broken"):
        lamp(failing(RuntimeError("broken")), "on")


def test_debug_prints_the_traceback_of_an_error(lamp):
    ended = lamp(failing(DataError("no bulb")), "on", "--debug")
    assert ended.code == 1
    assert "Traceback" in ended.err and "deed" in ended.err
    assert ended.err.endswith("lamp: no bulb\n")


@pytest.mark.parametrize(("argv", "shown"), [(("on",), ["hot"]), (("on", "-v"), ["warm", "hot"])])
def test_logs_are_shown_from_a_level_on(lamp, argv, shown):
    def deed() -> None:
        log.debug("warm")
        log.warning("hot")

    ended = lamp(deed, *argv)
    assert [line.rpartition(": ")[2] for line in ended.err.splitlines()] == shown
    assert (ended.code, ended.out) == (0, "")


@pytest.mark.parametrize("argv", [("--version",), ("on", "--version")])
def test_version_option_prints_the_version_and_runs_no_command(lamp, argv):
    assert lamp(failing(AssertionError("run")), *argv) == Ended(0, f"lamp {__version__}\n", "")


def test_unknown_option_exits_with_2(lamp):
    ended = lamp(lambda: None, "on", "--colour", "red")
    assert (ended.code, ended.out) == (2, "")
    assert "--colour" in ended.err


def test_keyboard_interrupt_exits_with_130(lamp):
    ended = lamp(failing(KeyboardInterrupt()), "on")
    assert ended.code == 130
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("argv", [("on", "--help"), ("--help",)])
def test_help_shows_no_type_for_an_option_that_takes_no_value(lamp, argv, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    shown = lamp(lambda: None, *argv).out
    assert "--help" in shown
    assert "bool" not in shown.lower()


@pytest.fixture
def kettle(monkeypatch, capsys) -> Callable[..., Ended]:
    """A program `kettle boil`, with the common option --cups and the rare options --altitude and --lid."""
    monkeypatch.setenv("TERM", "dumb")
    app = make_app("kettle", "A kettle.")

    @command(app, "boil", example="kettle boil --cups 2")
    @with_options([option(name, int, 0) for name in ("cups", "altitude", "lid")], "given", rare=["altitude", "lid"])
    def boil(given: dict[str, int]) -> None:
        """Boil water."""
        typer.echo(given)

    @command(app, "pour", example="kettle pour")
    def pour() -> None:
        """Pour it."""

    return Program(lambda: run_app(app, "kettle"), monkeypatch, capsys)


def test_help_has_the_number_of_rare_options_in_place_of_them(kettle):
    shown = kettle("boil", "--help")
    assert (shown.code, shown.err) == (0, "")
    assert "--cups" in shown.out and "--altitude" not in shown.out and "--lid" not in shown.out
    assert shown.out.split("Example: kettle boil --cups 2")[1].strip() == "2 more options: kettle boil --help-all"


def test_help_all_shows_every_option_and_runs_no_command(kettle):
    shown = kettle("boil", "--help-all")
    assert (shown.code, shown.err) == (0, "")
    assert "--cups" in shown.out and "--altitude" in shown.out and "--lid" in shown.out
    assert shown.out.rstrip().endswith("Example: kettle boil --cups 2")


def test_rare_option_has_its_effect(kettle):
    assert kettle("boil", "--altitude", "8000") == Ended(0, "{'cups': 0, 'altitude': 8000, 'lid': 0}\n", "")


def test_error_about_an_unknown_option_suggests_rare_ones(kettle):
    assert "Possible options: --altitude" in kettle("boil", "--altitud", "1").err


def test_shell_completes_rare_options(kettle, monkeypatch):
    for name, value in (("_KETTLE_COMPLETE", "complete_bash"), ("COMP_WORDS", "kettle boil --"), ("COMP_CWORD", "2")):
        monkeypatch.setenv(name, value)
    assert {"--cups", "--altitude", "--help-all"} <= set(kettle().out.split())


def test_command_without_rare_options_has_no_help_all(kettle):
    assert "--help-all" not in kettle("pour", "--help").out
    assert kettle("pour", "--help-all").code == 2


@pytest.fixture
def shed(monkeypatch, capsys) -> Callable[..., Ended]:
    """A program `shed fill FILE... [--into DIR] [--list FILE] [--label NAME]`, which prints its arguments."""
    app = make_app("shed", "A shed.")

    @command(app, "fill", example="shed fill rake.txt")
    def fill(
        files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
        into: Annotated[Path, typer.Option(metavar="DIR", envvar="SHED_INTO")] = Path(),
        inventory: Annotated[Path | None, typer.Option("--list", "-l", metavar="FILE")] = None,
        label: Annotated[str, typer.Option(metavar="NAME")] = "old",
    ) -> None:
        """Put things into it."""
        typer.echo(f"{[str(one) for one in files]} {into} {inventory} {label!r}")

    return Program(lambda: run_app(app, "shed"), monkeypatch, capsys)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("rake", "--into", ""), ["--into"]),
        (("rake", "--into="), ["--into"]),
        (("rake", "-l", ""), ["--list"]),
        (("rake", ""), ["FILE"]),
        (("--list", "", "--into", "", "rake"), ["--into", "--list"]),
    ],
    ids=["option", "equals", "short", "argument", "both"],
)
def test_empty_path_raises_config_error(shed, argv, named):
    """A script passes an empty path if its variable is not set; typer would take it for the current folder."""
    problems = "".join(f"shed: {one}: is empty; expected a path\n" for one in named)
    assert shed("fill", *argv) == Ended(2, "", problems)


def test_other_values_may_be_empty_and_paths_may_be_left_out(shed, monkeypatch):
    monkeypatch.setenv("SHED_INTO", "")
    assert shed("fill", "rake", "--label", "") == Ended(0, "['rake'] . None ''\n", "")
    assert shed("fill", ".", "--into", ".", "--list", "a b") == Ended(0, "['.'] . a b 'old'\n", "")
    assert "Put things into it." in shed("fill", "rake", "--into", "", "--help").out


def test_path_that_cannot_be_read_is_left_to_the_command(monkeypatch, capsys, tmp_path):
    """The command's message has a remedy, unlike typer's message."""
    app = make_app("lamp", "A lamp.")
    given: list[Path] = []

    @command(app, "on", example="lamp on")
    def on(file: Path, where: Annotated[Path, typer.Option("--where", metavar="PATH")] = Path()) -> None:
        """Switch it on."""
        given.extend((file, where))

    monkeypatch.setattr("os.access", lambda *_, **__: False)
    done = Program(lambda: run_app(app, "lamp"), monkeypatch, capsys)("on", tmp_path, "--where", tmp_path)
    assert (done.code, given) == (0, [tmp_path, tmp_path])


_WITH_A_CLOSED_STDERR = """
import sys
from fedpatch.shared.app.command import command, make_app, run_app, say
from fedpatch.shared.app.terminal import PlainLines
from fedpatch.shared.errors import BrokerError
app = make_app("train", "Trains.")
@command(app, "run", example="train run")
def run(fails: bool = False) -> None:
    with PlainLines(sys.stderr) as lines:
        lines.say("round 1")
    say("to go on: train resume")
    print("result")
    if fails:
        raise BrokerError("no broker answers")
run_app(app, "train")
"""


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--fails"], BrokerError.exit_code)])
def test_closed_stderr_changes_neither_result_nor_exit_code(options, code):
    """The case of `fedpatch run 2> >(head -1) > result.txt`."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command_line = [sys.executable, "-c", _WITH_A_CLOSED_STDERR, "run", *options]
    with open(writing, "wb") as stderr:
        ended = subprocess.run(command_line, stdout=subprocess.PIPE, stderr=stderr, env=environment)
    assert (ended.returncode, ended.stdout) == (code, b"result\n")


def test_program_without_stderr_prints_its_result():
    command_line = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", _WITH_A_CLOSED_STDERR, "run"]
    ended = subprocess.run(command_line, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (0, b"result\n")


_WITH_A_TABLE = """
import os, sys
from pathlib import Path
from fedpatch.shared.app.command import command, make_app, run_app
app = make_app("train", "Trains.")
@command(app, "run", example="train run")
def run() -> None:
    width = 80 if sys.stdout.isatty() else 10_000
    with open("model", "wb") as file:
        Path("number").write_text(str(file.fileno()))
        os.write(2, b"a warning of a library")
        file.write(b"weights")
run_app(app, "train")
"""


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-", "<&- 2>&-"])
def test_no_file_of_a_program_without_standard_streams_takes_what_is_written_to_them(tmp_path, closed):
    command_line = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", _WITH_A_TABLE, "run"]
    ended = subprocess.run(command_line, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0
    assert int((tmp_path / "number").read_text()) > 2
    assert (tmp_path / "model").read_bytes() == b"weights"


_WITH_A_FILE_NAME = """
import os
from pathlib import Path
import typer
from fedpatch.shared.app.command import command, make_app, run_app
app = make_app("look", "Looks.")
@command(app, "at", example="look at FILE")
def at(file: Path) -> None:
    typer.echo(f"{file}: \u7dd1")
run_app(app, "look")
"""


@pytest.mark.parametrize(
    ("encoding", "name", "printed"),
    [("utf-8", b"caf\xe9.jpg", "caf\\udce9.jpg: 緑\n".encode()), ("latin-1", b"a.jpg", b"a.jpg: \\u7dd1\n")],
    ids=["a file name that is not UTF-8", "a letter that the terminal does not have"],
)
def test_text_that_stdout_cannot_encode_is_printed_with_escapes(encoding, name, printed):
    command_line = [sys.executable, "-c", _WITH_A_FILE_NAME, "at", os.fsdecode(name)]
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    ended = subprocess.run(command_line, capture_output=True, env=environment)
    assert (ended.returncode, ended.stdout) == (0, printed), ended.stderr
