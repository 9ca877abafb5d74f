"""What the command lines of both sides have in common.

An error is a sentence and an exit code; every command has an example in its `--help` and `--debug` for logs; `--version`
is on the whole. stdout is for results; messages and logs go to stderr.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TextIO

import typer
import typer.main

from shared import __version__
from shared.command_groups import Command, group_with
from shared.errors import FedpatchError
from shared.log_lines import LineFormatter, LogFormat, journal_priority, stderr_is_journal


def _show_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{context.find_root().info_name} {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version; stop.")
]
_Debug = Annotated[
    bool, typer.Option("--debug", "-v", help="Log what happens on stderr, and where an error comes from.")
]
_LogFormat = Annotated[
    LogFormat,
    typer.Option("--log-format", envvar="FEDPATCH_LOG_FORMAT", help="Logs for people, or as key=value pairs."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]

log = logging.getLogger("fedpatch.command")


def make_app(
    name: str, about: str, *, installed: str = "", panels: Mapping[str, Sequence[str]] | None = None
) -> typer.Typer:
    """A command line whose commands are added by `command`. `panels` are the headings of its help, with their commands.

    `installed` is a group of entry points that hold further commands, each a typer.Typer. They are looked for when a name
    is none of the app's own, and loaded when they are called or listed, so that the app's own commands pay nothing.
    """
    cls = group_with(installed, panels or {})
    app = typer.Typer(name=name, help=about, cls=cls, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(no_options)
    return app


def command(
    app: typer.Typer, name: str, *, example: str, log_level: int = logging.WARNING
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the function is the command `name` of `app`, its docstring the help, `example` the end of it.

    It gets the options `--debug`, without which logs from `log_level` on are shown, and `--log-format`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=Command, epilog=f"Example: {example}")(with_debug(function, log_level))
        return function

    return decorate


def with_debug(function: Callable[..., None], log_level: int = logging.WARNING) -> Callable[..., None]:
    """`function` as typer takes it, with the options `--debug`, `--log-format` and `--version`."""

    @functools.wraps(function)
    def run(*, debug: bool, log_format: LogFormat, version: bool, **given: Any) -> None:
        del version  # told before this is called
        set_up_logging(logging.DEBUG if debug else log_level, log_format)
        function(**given)

    own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
    added = (("debug", _Debug, False), ("log_format", _LogFormat, LogFormat.TEXT), ("version", _Version, False))
    for name, annotation, default in added:
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    run.__dict__["__signature__"] = inspect.Signature(parameters)  # what typer reads
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def no_options(version: _Version = False) -> None:
    """What a command that only holds others is given: `app.callback()(no_options)`."""


def run_app(app: typer.Typer, name: str) -> NoReturn:
    """Runs what the process was called with, and ends the process."""
    try:
        app(prog_name=name)
    except FedpatchError as error:
        log.debug("%s", type(error).__name__, exc_info=error)
        _complain(name, str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        log.debug("%s", type(error).__name__, exc_info=error)
        where = f"{error.filename}: " if error.filename else ""
        _complain(name, f"{where}{error.strerror or error}")
        sys.exit(FedpatchError.exit_code)
    sys.exit(0)


def set_up_logging(level: int, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Shows what fedpatch's own loggers say, from `level` on; the libraries' are left alone."""
    logger = logging.getLogger("fedpatch")
    handler = _StderrHandler()
    handler.setFormatter(LineFormatter(log_format, journal=stderr_is_journal()))
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: a live display replaces it, so that lines appear above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def say(*lines: str) -> None:
    """What a person should know who runs a command, on stderr: stdout is for results."""
    for line in lines:
        typer.echo(line, err=True)


def _complain(name: str, text: str) -> None:
    """One line per problem, each with the program's name, so that they are found again in a log."""
    priority = journal_priority(logging.ERROR) if stderr_is_journal() else ""
    for line in text.splitlines():
        typer.echo(f"{priority}{name}: {line}", err=True)
