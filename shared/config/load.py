"""Loads settings from four places: defaults, a TOML file, the environment, flags. The later place wins.

`load` checks the values of all places, also of overridden ones, and raises all problems at once. A setting that only earlier
versions had is a warning in the log. The file is flat: one `key = value` for each setting, with the names of the fields as
keys.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from fedpatch.shared.app.files import remedy_to_read
from fedpatch.shared.config.fields import NONE_WORD, Setting, Settings, from_text, from_value, settings_of
from fedpatch.shared.config.secrets import drop_secrets
from fedpatch.shared.config.toml_edit import key_lines, parse_toml, syntax_problem, toml_value
from fedpatch.shared.errors import ConfigError

log = logging.getLogger("fedpatch.settings")

S = TypeVar("S", bound=Settings)
R = TypeVar("R")

_METAVARS: dict[type, str] = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH", tuple: "TEXT,..."}

_KEY_SIMILARITY = 0.6
# Some variables with our prefix are no settings (FEDPATCH_DATA, FEDPATCH_AGENT_TASK), so only a name very similar to a
# setting is refused as a typing error.
_VARIABLE_SIMILARITY = 0.85


@dataclass(frozen=True)
class Origin:
    """The place of a value: a line of a file, a variable, an option, or "default"."""

    place: str
    tells_key: bool = True

    def problem(self, key: str, text: object) -> str:
        """Return `text` about the setting `key`, with the place first."""
        if self == DEFAULT:
            return f"{key}: {text}"
        return f"{self.place}: {text}" if self.tells_key else f"{self.place}: {key}: {text}"


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """Settings, with the origin of each field."""

    settings: S
    origins: Mapping[str, Origin]


def load(
    cls: type[S],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object | None],
) -> S:
    """Load settings.

    Args:
        file: A TOML file; None for none.
        environ: Environment variables. A setting's variable is `cls.env_prefix` plus its name in capitals; empty: unset.
        flags: Values of options by field name; None for an option that is not given. A text is parsed like a variable.

    Returns:
        The settings: flag before environment before file before default. `none` unsets an optional field.

    Raises:
        ConfigError: With all problems.
    """
    return load_with_origins(cls, file=file, environ=environ, flags=flags).settings


def load_with_origins(
    cls: type[S],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object | None],
) -> Loaded[S]:
    """Load settings as `load` does, with the origin of each value.

    Raises:
        ConfigError: With all problems.
    """
    reader = _Reader({one.name: one for one in settings_of(cls)}, cls.former)
    if file is not None:
        reader.read_file(file)
    reader.read_environment(environ, cls.env_prefix)
    reader.read_flags(flags)
    return reader.finish(cls)


class _Reader:
    """Collects the values of each place in turn, and the problems."""

    def __init__(self, known: Mapping[str, Setting], former: Mapping[str, str]) -> None:
        self.known = known
        self.former = former
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.wrong: set[str] = set()
        self.unread = False  # whether the file could not be read, so its settings are unknown

    def take_section(self, file: Path, text: str, line: int, name: str, table: Mapping[str, Any]) -> None:
        """Report a section at this line of the text, and take its settings, so that their own problems are reported too."""
        inside = [key for key in table if key in self.known]
        also = f"; {', '.join(inside)} then count" if inside else ""
        self.problems.append(f"{file}:{line}: [{name}]: settings have no sections; delete this line{also}")
        lines = key_lines("\n".join(text.split("\n")[line:]))
        for key in inside:
            place = Origin(f"{file}:{line + lines.get(key, 0)}", tells_key=False)
            if key in self.origins or key in self.wrong:
                self.problems.append(place.problem(key, "is set a second time; keep one of its lines"))
            self.take(key, place, table[key], from_value)

    def take(self, key: str, origin: Origin, raw: object, convert: Callable[[Setting, Any], Any]) -> None:
        one = self.known.get(key)
        if one is None and key in self.former:
            log.warning("%s", origin.problem(key, self.former[key]))
            return
        try:
            if one is None:
                near = get_close_matches(key, self.known, n=1, cutoff=_KEY_SIMILARITY)
                raise ValueError("unknown setting" + (f"; did you mean {near[0]}?" if near else ""))
            value = convert(one, raw)
            self.values[key] = value.expanduser() if isinstance(value, Path) else value
            self.origins[key] = origin
        except ValueError as error:
            self.problems.append(origin.problem(key, error))
            self.wrong.add(key)
        except RuntimeError:
            text = f"{raw!r}: this user has no home directory for ~; write an absolute path, or set HOME"
            self.problems.append(origin.problem(key, text))
            self.wrong.add(key)

    def read_file(self, file: Path) -> None:
        self.unread = True
        try:
            text = _text_of(file)
            table = parse_toml(text)
        except tomllib.TOMLDecodeError as error:
            line, words = syntax_problem(text, error)
            self.problems.append(f"{file}:{line}: not TOML: {words}")
            return
        except (ValueError, RecursionError) as error:  # too many digits, parts of a key, or lists in lists
            self.problems.append(f"{file}: cannot be read: {error}")
            return
        except ConfigError as error:
            self.problems.extend(error.problems)
            return
        self.unread = False
        lines = key_lines(text)
        for key, value in sorted(table.items(), key=lambda item: lines.get(item[0], 0)):
            if isinstance(value, dict) and key not in self.known:
                self.take_section(file, text, lines.get(key, 1), key, value)
                continue
            self.take(key, Origin(f"{file}:{lines.get(key, 1)}", tells_key=False), value, from_value)

    def read_environment(self, environ: Mapping[str, str], prefix: str) -> None:
        for variable in sorted(environ):
            key = variable.removeprefix(prefix).lower()
            if not variable.startswith(prefix) or variable != prefix + key.upper() or not environ[variable]:
                continue
            origin = Origin(f"${variable}")
            if key in self.known and (problem := _wrapping_of(environ[variable], secret=self.known[key].rules.secret)):
                self.problems.append(origin.problem(key, problem))
                self.wrong.add(key)
            elif key in self.known or key in self.former:
                self.take(key, origin, environ[variable], from_text)
            elif near := get_close_matches(key, self.known, n=1, cutoff=_VARIABLE_SIMILARITY):
                self.problems.append(f"${variable}: unknown variable; did you mean ${prefix}{near[0].upper()}?")

    def read_flags(self, flags: Mapping[str, object | None]) -> None:
        for key, raw in flags.items():
            if raw is not None:
                flag = "--" + key.replace("_", "-")
                self.take(key, Origin(flag), raw, from_text if isinstance(raw, str) else from_value)

    def finish(self, cls: type[S]) -> Loaded[S]:
        values = {}
        for key, one in self.known.items():
            if one.required and key not in self.origins and key not in self.wrong:
                self.wrong.add(key)
                if not self.unread:
                    self.problems.append(f"{key}: not set; {_remedy(one)}")
            # A valid value replaces a wrong or missing one, so that the checks of other fields still run.
            stand_in = from_text(one, one.rules.example) if one.required else one.default
            values[key] = stand_in if key in self.wrong else self.values.get(key, one.default)
        fitting = {
            key: value for key, value in cls.fit(values).items() if key not in self.origins and key not in self.wrong
        }
        settings = cls(**values | fitting)
        for key, problem, *others in settings.check():
            if self.wrong.isdisjoint((key, *others)):
                self.problems.append(self.origins.get(key, DEFAULT).problem(key, problem))
        if self.problems:
            raise ConfigError(self.problems)
        return Loaded(settings, {key: self.origins.get(key, DEFAULT) for key in self.known})


def _wrapping_of(text: str, *, secret: bool) -> str:
    """Return what is around the value of a variable, as of a file that no shell has read, and the remedy; "" for nothing."""
    if text[-1] in "\r\n":
        return "ends with a line end; take it out" + " (dos2unix: it is of a file of Windows)" * ("\r" in text)
    if not secret and len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return "is in quotation marks, which belong to the value in a file of docker's --env-file; take them out"
    return ""


def _remedy(one: Setting) -> str:
    text = one.rules.help[0].lower() + one.rules.help[1:].rstrip(".")
    return f"say {text}, e.g. {one.name} = {toml_value(from_text(one, one.rules.example))}"


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except IsADirectoryError:
        raise ConfigError([f"{file}: is a directory; give a configuration file"]) from None
    except FileNotFoundError:
        raise ConfigError([f"{file}: no such file; correct this path"]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{file}:{line}: is not UTF-8 text; save it as UTF-8"]) from None
    except OSError as error:
        remedy = remedy_to_read(error, file, "correct this path")
        raise ConfigError([f"{file}: cannot be read: {error.strerror or error}; {remedy}"]) from None


def public_values(settings: Settings) -> dict[str, str | int | float | bool | list[str] | None]:
    """Return every field but the secrets, by name, as plain data to store and show; `load` accepts it as `flags`."""
    values = {}
    for one in settings_of(type(settings)):
        if not one.rules.secret:
            value = getattr(settings, one.name)
            if value is None and one.default is not None:
                value = one.rules.none_word
            value = str(value) if isinstance(value, Path) else value
            values[one.name] = list(value) if isinstance(value, tuple) else value
    return values


def to_toml(settings: Settings, origins: Mapping[str, Origin] | None = None) -> str:
    """Return the settings as a configuration file, without secrets; `origins` become comments."""
    lines: list[str] = []
    group = None
    for one in settings_of(type(settings)):
        if one.rules.group != group:
            group = one.rules.group
            lines += ["", f"# {group}"]
        origin = f"  # {origins[one.name].place}" if origins else ""
        value = getattr(settings, one.name)
        if one.rules.secret and value is not None:
            lines.append(f'# {one.name} = "***"{origin}')
        elif value is None and one.default is None and one.rules.none_word == NONE_WORD:
            lines.append(f"# {one.name} is not set{origin}")
        else:
            lines.append(f"{one.name} = {toml_value(one.rules.none_word if value is None else value)}{origin}")
    return "\n".join(lines[1:]) + "\n"


@dataclass(frozen=True)
class Source(Generic[S]):
    """The places of a command's settings, to read them again.

    Attributes:
        cls: The settings class.
        file: The configuration file; None for none.
        environ: The environment at the start, with secrets.
        flags: The options of the command.
    """

    cls: type[S]
    file: Path | None
    environ: Mapping[str, str]
    flags: Mapping[str, object | None]

    def load(self) -> Loaded[S]:
        """Read the settings again. Raises ConfigError with all problems."""
        return load_with_origins(self.cls, file=self.file, environ=self.environ, flags=self.flags)


FindFile = Callable[[Mapping[str, object | None], Mapping[str, str]], Path | None]
"""Returns the configuration file of a command without `--config`, from its options and the environment; None for none."""


def cli_options(cls: type[S], *, find_file: FindFile | None = None) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator that gives a typer command an option per field of `cls`, `--config FILE` and `--print-config`.

    The command gets the loaded settings as its keyword argument `settings`; its own parameters stay, by keyword. The options
    are texts with the default None. `load` checks their values together with those of all other places, so that the
    precedence holds and an error has the same text in each place. A command with a parameter `source` gets their Source too.
    Options of settings that are not in `cls.common` are rare: only `--help-all` shows them.
    """
    # Imported here, since a program without a command line does not need typer.
    from fedpatch.shared.app.command import add_options

    known = settings_of(cls)

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        takes_source = "source" in inspect.signature(command).parameters

        @functools.wraps(command)
        def run(*, config: Path | None, print_config: bool, **given: Any) -> R:
            flags = {one.name: given.pop(one.name) for one in known if not one.rules.secret}
            if config is None and find_file is not None:
                config = find_file(flags, os.environ)
            source = Source(cls, config, dict(os.environ), flags)
            loaded = source.load()
            if takes_source:
                given["source"] = source
            drop_secrets(os.environ)
            if print_config:
                import typer

                typer.echo(to_toml(loaded.settings, loaded.origins), nl=False)
                raise typer.Exit
            return command(settings=loaded.settings, **given)

        rare = {one.name for one in known if cls.common and one.name not in cls.common and not one.rules.secret}
        add_options(run, command, _options(known, cls.env_prefix), replaced=("settings", "source"), rare=rare)
        return run

    return decorate


def _options(known: Sequence[Setting], env_prefix: str) -> list[inspect.Parameter]:
    import typer

    from fedpatch.shared.app.command import option

    def parameter(name: str, kind: Any, default: object, *names: str, **about: Any) -> inspect.Parameter:
        return option(name, Annotated[kind, typer.Option(*names, show_default=False, **about)], default)

    options = [
        parameter("config", Path | None, None, "--config", metavar="FILE", help="Read settings from this TOML file."),
        parameter(
            "print_config", bool, False, "--print-config", help="Show the settings and where they come from; stop."
        ),
    ]
    for one in known:
        if one.rules.secret:
            continue
        about = {"help": f"{one.rules.help} {_about(one, env_prefix)}", "rich_help_panel": one.rules.group}
        if one.kind is bool:
            options.append(parameter(one.name, bool | None, None, f"{one.flag}/--no-{one.flag[2:]}", **about))
        else:
            metavar = one.rules.unit.upper() or _METAVARS[one.kind]
            options.append(parameter(one.name, str | None, None, one.flag, metavar=metavar, **about))
    return options


def _about(one: Setting, env_prefix: str) -> str:
    """Range, default and variable in round brackets: rich would read square ones as markup."""
    parts = [one.range, one.default_words if one.required else f"default: {one.default_words}"]
    return "(" + "; ".join([*filter(None, parts), f"env: {env_prefix}{one.name.upper()}"]) + ")"
