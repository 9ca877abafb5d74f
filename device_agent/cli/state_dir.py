"""The state directory of commands that look at an agent's files: `--state-dir`, or the settings file of `--config`."""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.status_file import STATUS_NAME, status_entry
from fedpatch.shared.app.command import add_options, option
from fedpatch.shared.app.files import refusals_of, refuse_broken_link, remedy_to_read
from fedpatch.shared.config.load import DEFAULT, Source
from fedpatch.shared.config.toml_edit import parse_toml, syntax_problem
from fedpatch.shared.errors import ConfigError, UsageError

R = TypeVar("R")

_VARIABLE = f"{AgentSettings.env_prefix}STATE_DIR"
SERVICE = Path("/var/lib/fedpatch-agent")
"""State directory of the service that `fedpatch-agent unit` prints."""

StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", envvar=_VARIABLE, metavar="PATH", help="State directory of the agent."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file of the agent, which names its state directory."),
]


def state_options(command: Callable[..., R]) -> Callable[..., R]:
    """Return a typer command with `--state-dir` and `--config` in place of the parameter `state_dir` of `command`."""

    @functools.wraps(command)
    def run(*, state_dir: Path | None, config: Path | None, **given: Any) -> R:
        return command(state_dir=place_of(state_dir, config), **given)

    options = [option("state_dir", StateDir, None), option("config", Config, None)]
    add_options(run, command, options, replaced=("state_dir",))
    return run


def place_of(state_dir: Path | None, config: Path | None) -> Path:
    """Return the state directory: the option, else that of the settings file, else that of its service, else the default.

    Other settings of the file are not checked, since a wrong one must not hide the state. ConfigError if the file cannot be
    read.
    """
    if state_dir is not None:
        return state_dir.expanduser()
    if config is None:
        return AgentSettings.state_dir
    return Path(named_in(config) or _of_service(config) or AgentSettings.state_dir).expanduser()


def in_place(settings: AgentSettings, source: Source[AgentSettings]) -> AgentSettings:
    """Return the settings with the state directory of the service where no place names one, as `place_of` does."""
    if source.file is None or source.load().origins["state_dir"] != DEFAULT:
        return settings
    return replace(settings, state_dir=_of_service(source.file) or settings.state_dir)


def _of_service(config: Path) -> Path | None:
    """Return the directory of the service whose agent has this settings file: the service gets it by an option."""
    running = status_entry(SERVICE, "settings")
    is_its = isinstance(running, dict) and running.get("file") == str(config.expanduser().absolute())
    return SERVICE if is_its else None


def existing(state_dir: Path) -> Path:
    """Return the state directory. UsageError if there is none."""
    with refusals_of(state_dir):
        refuse_broken_link(state_dir)
        if state_dir.is_dir():
            return state_dir
    raise UsageError(f"no agent has run in {state_dir}; say where its state is with --state-dir")


def named_in(config: Path) -> str | None:
    """Return the state directory that a settings file names, None for none. ConfigError if the file cannot be read."""
    text = ""
    try:
        text = config.expanduser().read_bytes().decode("utf-8-sig")
        found = parse_toml(text).get("state_dir")
    except tomllib.TOMLDecodeError as error:
        line, words = syntax_problem(text, error)
        raise ConfigError([f"{config}:{line}: not TOML: {words}"]) from None
    except OSError as error:
        remedy = remedy_to_read(error, config, "correct --config")
        raise ConfigError([f"{config}: cannot be read: {error.strerror or error}; {remedy}"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{config}: not TOML: {error}"]) from None
    if not isinstance(found, str | None):
        raise ConfigError([f"{config}: state_dir: must be a text, such as {str(AgentSettings.state_dir)!r}"])
    return found


def settings_file(flags: Mapping[str, object | None], environ: Mapping[str, str]) -> Path | None:
    """Return the settings file of the agent in a state directory that an option or a variable names; None if it has none.

    StateError where this user may not look into the directory: without its settings, a command would ask for others.
    """
    named = flags.get("state_dir") or environ.get(_VARIABLE)
    if not named:
        return None
    place = Path(str(named)).expanduser()
    with refusals_of(place), suppress(FileNotFoundError, NotADirectoryError):
        (place / STATUS_NAME).open("rb").close()
    try:
        file = Path(status_entry(place, "settings")["file"])
    except (KeyError, TypeError):
        return None
    return file if file.is_absolute() and os.access(file, os.F_OK, effective_ids=True) else None
