"""What the command lines of both sides have in common.

An error is a sentence and an exit code; every command has an example in its `--help` and `--debug` for logs; `--version`
is on the whole. stdout is for results; messages and logs go to stderr.

Groups of commands: help with headings, no empty paths, and commands that are imported when they are called.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, ClassVar, NoReturn, TextIO

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from fedpatch.shared import __version__
from fedpatch.shared.app.logging import LineFormatter, LogFormat, journal_priority, stderr_is_journal
from fedpatch.shared.errors import ConfigError, FedpatchError

_PATHS = ("PATH", "FILE", "DIR")  # how a path is called in help, FILE... where there may be several


class _StrictPaths:
    """What typer takes no care of, in help and among what is typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, but ConfigError for an empty path: pathlib takes it for the current folder."""
        typed = list(args)
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]  # of the class that this is mixed into
        if not ctx.resilient_parsing:  # for completion, which tells no errors
            self._refuse_empty_paths(ctx, typed)
        return rest

    def _refuse_empty_paths(self, ctx: Any, typed: list[str]) -> None:
        # The values in ctx.params are paths already, or not yet, as typer's version has it. Empty variables are not set.
        given: dict[str, Any] = self.make_parser(ctx).parse_args(typed)[0]  # type: ignore[attr-defined]
        problems = []
        for one in self.get_params(ctx):
            value = given.get(one.name)
            values = value if isinstance(value, list | tuple) else [value]
            if (one.metavar or "").removesuffix("...") in _PATHS and "" in values:
                option = one.param_type_name == "option"
                named = max(one.opts, key=len) if option else one.metavar.removesuffix("...")
                problems.append(f"{named}: is empty; expected a path")
        if problems:
            raise ConfigError(problems)

    def get_params(self, ctx: Any) -> list[Any]:
        """Those of the command, and --help; without a type where there is no value, which typer shows as `--json <bool>`."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class that this is mixed into
        for one in params:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return params


class Command(_StrictPaths, TyperCommand):
    """A command of ours."""


class Group(_StrictPaths, TyperGroup):
    """A command of ours that has commands."""


class PanelGroup(Group):
    """A group whose help has a heading for each purpose. `group_with` makes a class of its own for each command line."""

    headings: ClassVar[Mapping[str, str]] = {}
    lazy: ClassVar[dict[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands: those without a heading first, then the others in the order of their headings."""
        found = [*super().list_commands(ctx), *self.lazy]
        order = [name for name in self.headings if name in found]
        return [*(name for name in found if name not in self.headings), *order]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None; the module of a lazy command is imported here."""
        found: Any = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in self.lazy:
            module, _, attribute = self.lazy[cmd_name].partition(":")
            app: typer.Typer = getattr(import_module(module), attribute)
            app.info.name = cmd_name
            found = typer.main.get_command(app)
        if found is not None and cmd_name in self.headings:
            found.rich_help_panel = self.headings[cmd_name]
        return found


def group_with(panels: Mapping[str, Sequence[str]]) -> type[PanelGroup]:
    """A class of groups.

    Args:
        panels: Headings of the help, each with the names of its commands in their order.
    """
    headings = {name: panel for panel, names in panels.items() for name in names}
    return type("PanelGroup", (PanelGroup,), {"headings": headings, "lazy": {}})


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


def make_app(name: str, about: str, *, panels: Mapping[str, Sequence[str]] | None = None) -> typer.Typer:
    """A command line whose commands are added by `command`. `panels` are the headings of its help, with their commands."""
    cls = group_with(panels or {})
    app = typer.Typer(name=name, help=about, cls=cls, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(no_options)
    return app


def add_lazy_command(app: typer.Typer, name: str, place: str) -> None:
    """Add a command whose module is imported when the command is called or listed.

    Args:
        app: Made by `make_app`.
        name: Name of the command.
        place: `module:attribute` of its typer.Typer.
    """
    assert isinstance(app.info.cls, type) and issubclass(app.info.cls, PanelGroup)
    app.info.cls.lazy[name] = place


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
