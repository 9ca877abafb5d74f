"""The state directory of commands that look at an agent's files: `--state-dir`, or the settings file of `--config`."""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.status_file import status_entry
from fedpatch.shared.app.command import add_options, option
from fedpatch.shared.app.files import refusals_of, remedy_to_read
from fedpatch.shared.config.toml_edit import parse_toml, syntax_problem
from fedpatch.shared.errors import ConfigError, UsageError

R = TypeVar("R")

_VARIABLE = f"{AgentSettings.env_prefix}STATE_DIR"
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
    """Return the state directory: the option, else that of the settings file, else the default.

    Other settings of the file are not checked, since a wrong one must not hide the state. ConfigError if the file cannot be
    read.
    """
    if state_dir is not None:
        return state_dir.expanduser()
    named = AgentSettings.state_dir if config is None else _named_in(config)
    return Path(named).expanduser()


def existing(state_dir: Path) -> Path:
    """Return the state directory. UsageError if there is none."""
    with refusals_of(state_dir):
        if state_dir.is_dir():
            return state_dir
    raise UsageError(f"no agent has run in {state_dir}; say where its state is with --state-dir")


def _named_in(config: Path) -> str | Path:
    text = ""
    try:
        text = config.expanduser().read_bytes().decode("utf-8-sig")
        found = parse_toml(text).get("state_dir", AgentSettings.state_dir)
    except tomllib.TOMLDecodeError as error:
        line, words = syntax_problem(text, error)
        raise ConfigError([f"{config}:{line}: not TOML: {words}"]) from None
    except OSError as error:
        remedy = remedy_to_read(error, config, "correct --config")
        raise ConfigError([f"{config}: cannot be read: {error.strerror or error}; {remedy}"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{config}: not TOML: {error}"]) from None
    if not isinstance(found, str | Path):
        raise ConfigError([f"{config}: state_dir: must be a text, such as {str(AgentSettings.state_dir)!r}"])
    return found


def settings_file(flags: Mapping[str, object | None], environ: Mapping[str, str]) -> Path | None:
    """Return the settings file of the agent in a state directory that an option or a variable names; None if it has none."""
    named = flags.get("state_dir") or environ.get(_VARIABLE)
    if not named:
        return None
    try:
        file = Path(status_entry(Path(str(named)).expanduser(), "settings")["file"])
    except (KeyError, TypeError):
        return None
    return file if file.is_absolute() and os.access(file, os.R_OK) else None
