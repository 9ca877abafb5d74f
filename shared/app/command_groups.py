"""Our kind of commands: their help and its headings, no empty paths, and the commands that other packages install."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from shared.entries import entries
from shared.errors import ConfigError, UsageError

_PATHS = ("PATH", "FILE", "DIR")  # how a path is called in help, FILE... where there may be several


class _Careful:
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


class Command(_Careful, TyperCommand):
    """A command of ours."""


class Group(_Careful, TyperGroup):
    """A command of ours that has commands."""


def group_with(entry_point_group: str, panels: Mapping[str, Sequence[str]]) -> type[Group]:
    """A group whose help has a heading for each purpose, with the commands in that order; what has none stands first.

    Further commands are looked for among the installed entry points, unless the name of their group is empty; the group's own
    commands hide any of the same name.
    """
    heading = {name: panel for panel, names in panels.items() for name in names}

    def installed() -> dict[str, dict[str, EntryPoint]]:
        return entries(entry_point_group) if entry_point_group else {}

    class WithPanels(Group):
        def list_commands(self, ctx: Any) -> list[str]:
            own = super().list_commands(ctx)
            found = [*own, *sorted(set(installed()) - set(own))]
            order = [name for name in heading if name in found]
            return [*(name for name in found if name not in heading), *order]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            found: Any = super().get_command(ctx, cmd_name)
            if found is None and (values := installed().get(cmd_name)):
                found = _installed_command(cmd_name, values)
            if found is not None and cmd_name in heading:
                found.rich_help_panel = heading[cmd_name]
            return found

    return WithPanels


def _installed_command(name: str, values: dict[str, EntryPoint]) -> Any:
    """One that cannot be loaded becomes a command that says so, whatever it is given: it must not hinder the others."""
    if len(values) > 1:
        return _refusing(
            name, f"it is installed more than once, as {' and '.join(sorted(values))}; uninstall one of them"
        )
    point = next(iter(values.values()))
    try:
        found = point.load()
    except Exception as error:  # whatever somebody else's module raises is told in one sentence
        return _refusing(name, f"{point.value} cannot be loaded: {type(error).__name__}: {error}; install it again")
    if not isinstance(found, typer.Typer):
        return _refusing(name, f"{point.value} is of type {type(found).__name__}, not a typer.Typer")
    found.info.name = name
    return typer.main.get_command(found)


def _refusing(name: str, problem: str) -> Any:
    app = typer.Typer(add_completion=False)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(name, cls=Command, help=f"Cannot be used: {problem}", add_help_option=False, context_settings=anything)
    def refuse() -> None:
        raise UsageError(f"the command {name!r} cannot be used: {problem}")

    return typer.main.get_command(app)
