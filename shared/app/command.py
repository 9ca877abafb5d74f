"""Base of the command lines: commands, groups of commands, exit codes, and logging options.

An error is printed as a sentence and sets the exit code. Every command has an example in its `--help`, and the options
`--debug`, `--log-format` and `--version`. `--help` leaves out the options that a command marks as rare; `--help-all` shows
them. Results go to stdout, messages and logs to stderr. A group has headings in its
help, refuses empty paths, and can import a command's module only when the command is called.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from importlib import import_module
from typing import Annotated, Any, ClassVar, NoReturn, TextIO

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from fedpatch.shared import __version__
from fedpatch.shared.app.logging import LineFormatter, LogFormat, journal_priority, stderr_is_journal
from fedpatch.shared.errors import ConfigError, FedpatchError, UsageError

_STDERR = 2  # file descriptor; stdin and stdout have the lower ones
_ALL_OPTIONS = "fedpatch.all_options"  # key of a context in which the help has the rare options too
_PATHS = ("PATH", "FILE", "DIR")  # metavars of paths in help; FILE... where there may be several


class _OwnCommand:
    """Mixin for commands: it refuses empty paths, corrects the help of flags, and leaves rare options out of `--help`."""

    @property
    def rare_options(self) -> frozenset[str]:
        """Names of the parameters that only `--help-all` shows."""
        return getattr(self.callback, "rare_options", frozenset())  # type: ignore[attr-defined]  # the other base class has it

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; unless `--help-all` was given, without the rare options but with their number."""
        shown: Any = self
        if self.rare_options and not ctx.meta.get(_ALL_OPTIONS):
            # A copy, since the options stay in `params` for parsing and for the completion of the shell.
            shown = copy(self)
            shown.params = [one for one in shown.params if one.name not in self.rare_options]
            more = f"{len(self.rare_options)} more options: {ctx.command_path} --help-all"
            shown.epilog = f"{shown.epilog}\n\n{more}" if shown.epilog else more
        super(_OwnCommand, shown).format_help(ctx, formatter)  # type: ignore[misc]  # the other base class has it

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does. Raises ConfigError for an empty path, because pathlib reads it as the current folder."""
        typed = list(args)
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]  # the other base class has it
        if not ctx.resilient_parsing:  # resilient parsing is shell completion, which shows no errors
            self._refuse_empty_paths(ctx, typed)
        return rest

    def _refuse_empty_paths(self, ctx: Any, typed: list[str]) -> None:
        # Parsed again, because ctx.params holds converted paths with some versions of typer only.
        given: dict[str, Any] = self.make_parser(ctx).parse_args(typed)[0]  # type: ignore[attr-defined]
        problems = []
        for param in self.get_params(ctx):
            value = given.get(param.name)
            values = value if isinstance(value, list | tuple) else [value]
            if (param.metavar or "").removesuffix("...") in _PATHS and "" in values:
                option = param.param_type_name == "option"
                name = max(param.opts, key=len) if option else param.metavar.removesuffix("...")
                problems.append(f"{name}: is empty; expected a path")
        if problems:
            raise ConfigError(problems)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the command and --help.

        Flags have no metavar, because typer would show `--json <bool>`. Typer does not check paths, because the command's own
        message about an unreadable path has a remedy.
        """
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # the other base class has it
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            if getattr(param.type, "readable", False):
                param.type.readable = False
        return params


class Command(_OwnCommand, TyperCommand):
    """A command."""


class Group(_OwnCommand, TyperGroup):
    """A command that has subcommands."""


class PanelGroup(Group):
    """A group whose help has headings. `group_with` makes a subclass for each command line."""

    headings: ClassVar[Mapping[str, str]] = {}
    lazy: ClassVar[dict[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands: first those without a heading, then the others in the order of headings."""
        names = [*super().list_commands(ctx), *self.lazy]
        ordered = [name for name in self.headings if name in names]
        return [*(name for name in names if name not in self.headings), *ordered]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, or None. It imports the module of a lazy command."""
        subcommand: Any = super().get_command(ctx, cmd_name)
        if subcommand is None and cmd_name in self.lazy:
            module, _, attribute = self.lazy[cmd_name].partition(":")
            app: typer.Typer = getattr(import_module(module), attribute)
            app.info.name = cmd_name
            subcommand = typer.main.get_command(app)
        if subcommand is not None and cmd_name in self.headings:
            subcommand.rich_help_panel = self.headings[cmd_name]
        return subcommand


def group_with(panels: Mapping[str, Sequence[str]]) -> type[PanelGroup]:
    """Make a class of groups with these headings.

    Args:
        panels: Headings of the help, each with the names of its commands in their order.
    """
    headings = {name: panel for panel, names in panels.items() for name in names}
    return type("PanelGroup", (PanelGroup,), {"headings": headings, "lazy": {}})


def _show_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{context.find_root().info_name} {__version__}")
        raise typer.Exit


def _show_all_options(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_ALL_OPTIONS] = True
        typer.echo(context.get_help())
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version; stop.")
]
_HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_show_all_options, is_eager=True, help="Show the rare options too; stop.")
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
    """Make a command line, to which `command` adds commands.

    Args:
        about: First paragraph of its help.
        panels: Headings of its help, each with the names of its commands in their order.

    Returns:
        The command line, to be run by `run_app`.
    """
    cls = group_with(panels or {})
    app = typer.Typer(name=name, help=about, cls=cls, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(no_options)
    return app


def add_lazy_command(app: typer.Typer, name: str, place: str) -> None:
    """Add a command whose module is imported when the command is called or listed.

    Args:
        app: Made by `make_app`.
        place: `module:attribute` of its typer.Typer.
    """
    assert isinstance(app.info.cls, type) and issubclass(app.info.cls, PanelGroup)
    app.info.cls.lazy[name] = place


def command(
    app: typer.Typer, name: str, *, example: str, log_level: int = logging.WARNING
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a decorator that adds a function to a command line. The function's docstring is the command's help.

    Args:
        app: Made by `make_app`.
        example: A call of the command, for the end of its help.
        log_level: Lowest level of logs that is shown without `--debug`.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=Command, epilog=f"Example: {example}")(with_debug(function, log_level))
        return function

    return decorate


def with_debug(function: Callable[..., None], log_level: int = logging.WARNING) -> Callable[..., None]:
    """Return `function` for typer, with the additional options `--debug`, `--log-format` and `--version`.

    It also gets `--help-all` if some of its options are rare.
    """

    @functools.wraps(function)
    def run(*, debug: bool, log_format: LogFormat, version: bool, help_all: bool = False, **given: Any) -> None:
        del version, help_all  # their callbacks have handled them
        set_up_logging(logging.DEBUG if debug else log_level, log_format)
        function(**given)
        if (context := given.get("context")) is not None:
            _pass_on(context, debug=debug, log_format=log_format.value)

    # typer keeps the line breaks of a docstring, which do not fit the width of the terminal.
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    options = [
        option("debug", _Debug, False),
        option("log_format", _LogFormat, LogFormat.TEXT),
        option("version", _Version, False),
    ]
    if getattr(function, "rare_options", ()):
        options.append(option("help_all", _HelpAll, False))
    add_options(run, function, options)
    return run


def _pass_on(context: typer.Context, **given: object) -> None:
    """Make these options of a group the defaults of the subcommand that is called, if there is one."""
    if (subcommand := context.invoked_subcommand) is not None:
        known = context.default_map or {}
        context.default_map = {**known, subcommand: {**given, **known.get(subcommand, {})}}


def option(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    """Return an option for `add_options` and `with_options`.

    Args:
        annotation: Type of the option, annotated for typer.
    """
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_options(
    options: Sequence[inspect.Parameter], argument: str, rare: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command options; the command gets their values by name as `argument`.

    Args:
        options: Made by `option`.
        argument: A parameter of the command, which typer does not see.
        rare: Names of the options that only `--help-all` shows.

    Example:
        >>> @with_options([option("speed", int, 3)], "given")
        ... def go(given: dict[str, int]) -> None:
        ...     print(given)
        >>> inspect.signature(go), go(speed=3)
        {'speed': 3}
        (<Signature (*, speed: int = 3)>, None)
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**values: Any) -> None:
            given = {one.name: values.pop(one.name) for one in options}
            function(**{argument: given}, **values)

        add_options(run, function, options, replaced=(argument,), rare=rare)
        return run

    return decorate


def add_options(
    run: Callable[..., Any],
    function: Callable[..., Any],
    options: Sequence[inspect.Parameter],
    replaced: Sequence[str] = (),
    rare: Collection[str] = (),
) -> None:
    """Let typer see the parameters of `function` and further options in `run`.

    Args:
        run: Wrapper of `function`.
        function: Has parameters of its own, which typer reads.
        options: Further parameters of `run`.
        replaced: Parameters of `function` that `run` builds from the options and hides from typer.
        rare: Names of the options that only `--help-all` shows, besides the rare ones of `function`.
    """
    own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in own if one.name not in replaced] + [*options]
    run.__dict__["__signature__"] = inspect.Signature(parameters)  # typer reads the signature
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__dict__["rare_options"] = getattr(function, "rare_options", frozenset()) | frozenset(rare)


def no_options(version: _Version = False) -> None:
    """Callback of a command that only has subcommands: `app.callback()(no_options)`."""


def run_app(app: typer.Typer, name: str) -> NoReturn:
    """Run the command line `app` with the process's arguments, and exit. Errors become messages and exit codes."""
    _replace_closed_streams()
    _escape_unknown_letters()
    try:
        app(prog_name=name)
    except FedpatchError as error:
        log.debug("%s", type(error).__name__, exc_info=error)
        _print_error(name, str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        log.debug("%s", type(error).__name__, exc_info=error)
        where = f"{error.filename}: " if error.filename else ""
        _print_error(name, f"{where}{error.strerror or error}")
        sys.exit(FedpatchError.exit_code)
    except RuntimeError as error:
        if not str(error).startswith("Could not determine home"):  # of Path.expanduser and Path.home
            raise
        _print_error(
            name, "a path begins with ~, and its user has no home directory; write an absolute path, or set HOME"
        )
        sys.exit(UsageError.exit_code)
    finally:
        _leave_closed_stderr()
    sys.exit(0)


def _replace_closed_streams() -> None:
    """Open /dev/null for standard streams that are closed, as after `>&-`.

    Otherwise the next opened file would get the number of such a stream, and with it all that is written to the stream.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - used until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _escape_unknown_letters() -> None:
    """Let stdout print letters that it cannot encode, such as those of a file name that is not UTF-8, with escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def set_up_logging(level: int, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Log records of fedpatch's loggers from `level` on to stderr. Loggers of libraries stay as they are."""
    logger = logging.getLogger("fedpatch")
    handler = _StderrHandler()
    handler.setFormatter(LineFormatter(log_format, journal=stderr_is_journal()))
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Handler that writes to the current `sys.stderr`, which a live display replaces to print lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def say(*lines: str) -> None:
    """Print messages for the user on stderr; stdout is for results. A closed stderr stops nothing."""
    with suppress(OSError):
        for line in lines:
            typer.echo(line, err=True)


def _print_error(name: str, text: str) -> None:
    """Print one line per problem, each with the program's name, so that a log can be searched for them."""
    priority = journal_priority(logging.ERROR) if stderr_is_journal() else ""
    say(*(f"{priority}{name}: {line}" for line in text.splitlines()))


def _leave_closed_stderr() -> None:
    """Discard what a closed stderr did not take; otherwise the interpreter would end with exit code 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
