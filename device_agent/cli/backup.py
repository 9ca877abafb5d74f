"""`fedpatch-agent backup`, `restore` and `remove`: a new card, and the end of taking part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.device_agent.cli.state_dir import StateDir, existing, in_place, named_in, place_of, settings_file
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.status_file import host_as_device_id, lock_state_dir, status_entry
from fedpatch.shared.app.command import command
from fedpatch.shared.app.files import remedy_to_read
from fedpatch.shared.config.load import DEFAULT, Source, cli_options
from fedpatch.shared.errors import UsageError

_Passphrase = Annotated[
    Path, typer.Option("--passphrase-file", metavar="PATH", help="File whose first line is the passphrase.")
]
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file of the agent; without it that of the agent in --state-dir, else agent.toml.",
    ),
]

_SETTINGS = "agent.toml"
CONNECT_S = 15.0
SEND_S = 5.0


def add_backup(app: typer.Typer) -> None:
    """Give `app` the commands."""
    for add in (_add_backup, _add_restore, _add_remove):
        add(app)


def _first_line(path: Path) -> str:
    try:
        return (path.read_text("utf-8").splitlines() or [""])[0]
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise UsageError(f"{path}: {words}; write the passphrase into a file that only you may read") from None


def _settings_of(state_dir: Path | None, config: Path | None) -> tuple[Path, bool]:
    """Return the settings file, and whether the user chose its name: not if the state directory names it.

    The file is the option, else that of the agent in the state directory, else agent.toml.
    """
    found = None if config else settings_file({"state_dir": state_dir}, {})
    return found or config or Path(_SETTINGS), found is None


def _content_of(config: Path) -> bytes:
    try:
        return config.read_bytes()
    except OSError as error:
        remedy = remedy_to_read(error, config, "name the settings file of the agent with --config")
        raise UsageError(f"{config}: {error.strerror or error}; {remedy}") from None


def _device_of(place: Path) -> str:
    """Return the name of the device whose agent has a state directory; the host's name if none has run there yet."""
    return str(status_entry(place, "device_id") or host_as_device_id())


def _add_backup(app: typer.Typer) -> None:
    @command(
        app, "backup", example="fedpatch-agent backup pi-1.backup --passphrase-file passphrase --config agent.toml"
    )
    def backup(
        file: Annotated[
            Path, typer.Argument(metavar="FILE", help="File to write, mode 0600; with --keep the directory of backups.")
        ],
        passphrase_file: _Passphrase,
        config: _Config = None,
        state_dir: StateDir = None,
        keep: Annotated[
            int | None,
            typer.Option(
                "--keep", min=1, metavar="N", help="Number the backups in a directory, and keep the N newest."
            ),
        ] = None,
    ) -> None:
        """Write an encrypted backup: settings, patches, personal models, identity, history and accounts.

        The agent may run. With the backup a new card is the same device.
        """
        from fedpatch.device_agent.cli.backup_file import require_backup_or_none, seal_backup
        from fedpatch.device_agent.cli.numbered_backups import next_name, outdated
        from fedpatch.device_agent.policy.local_time import local_now
        from fedpatch.shared.app.files import refusals_of, write_atomic

        config, _ = _settings_of(state_dir, config)
        place = existing(place_of(state_dir, config))
        settings = _content_of(config)
        require_backup_or_none(file)
        passphrase, today = _first_line(passphrase_file), local_now().date()
        data = seal_backup(place, settings, passphrase, today, salt=os.urandom(16), nonce=os.urandom(12))
        folder, device = file, _device_of(place)
        with refusals_of(file):
            if keep is not None:
                if not folder.is_dir():
                    raise UsageError(f"{folder}: is no directory; mount or make the directory of backups")
                file = folder / next_name(os.listdir(folder), device, today)
            write_atomic(file, data)
            for name in [] if keep is None else outdated(os.listdir(folder), device, keep):
                (folder / name).unlink()
        typer.echo(f"wrote {file}, {len(data)} bytes; keep it and the passphrase apart from this device")


def _add_restore(app: typer.Typer) -> None:
    @command(
        app, "restore", example="fedpatch-agent restore pi-1.backup --passphrase-file passphrase --config agent.toml"
    )
    def restore(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `backup` wrote.")],
        passphrase_file: _Passphrase,
        config: _Config = None,
        state_dir: StateDir = None,
    ) -> None:
        """Make this card the device of a backup. The old card must not run any more.

        The allowance of today counts as spent. With max_epsilon rounds are declined until you have decided about rounds
        since the backup. An existing settings file stays, and so does an identity that this card has already.
        """
        from fedpatch.device_agent.cli.acting_as import acting_as
        from fedpatch.device_agent.cli.backup_file import open_backup, read_backup, settings_in, text_in
        from fedpatch.device_agent.cli.restore import restore_backup
        from fedpatch.device_agent.policy.local_time import local_now
        from fedpatch.device_agent.policy.privacy_budget import RESTORED_NAME
        from fedpatch.shared.app.files import refusals_of, write_atomic
        from fedpatch.shared.config.toml_edit import toml_value

        config, is_chosen = _settings_of(state_dir, config)
        if state_dir is None and not (config.exists() and named_in(config)):
            why = "names no state directory" if config.exists() else "no such file"
            raise UsageError(f"{config}: {why}; name that of the agent with --state-dir")
        place = place_of(state_dir, None if state_dir else config).absolute()
        archive = open_backup(read_backup(file), _first_line(passphrase_file), str(file))
        if config.exists():
            with refusals_of(config):
                ours, theirs = (text_in(one, "device_id") for one in (config.read_bytes(), settings_in(archive)))
            if ours and theirs and ours != theirs:
                raise UsageError(
                    f"{file}: is a backup of {theirs!r}, and {config} is of {ours!r}; name the right backup"
                )
        with refusals_of(place):
            place.mkdir(parents=True, exist_ok=True, mode=0o710)  # as the service has it
            owner = place.stat()
        with acting_as(owner), lock_state_dir(place):
            settings = restore_backup(archive, place, local_now().date())
        # Root writes where the user says, and not at a place that the agent's user names and may have moved since.
        if is_chosen and not config.exists():
            with refusals_of(config):
                write_atomic(config, settings)
                if os.geteuid() == 0:
                    os.lchown(config, owner.st_uid, owner.st_gid)
            typer.echo(f"wrote {config}")
        named = text_in(_content_of(config), "state_dir")
        if named and Path(named).expanduser().absolute() != place:
            typer.echo(f"{config} names the state directory {named}: write state_dir = {toml_value(place)} into it")
        typer.echo(f"restored {place}, which belongs to user {owner.st_uid}; the agent must run as this user")
        typer.echo("the allowance of today counts as spent")
        typer.echo(f"with max_epsilon, rounds are declined while {place / RESTORED_NAME} is there")
        typer.echo("end the old card's agent for good: two cards with one name are reported as a problem")


REMAINS = (
    ("the state directory {state}, with patches and personal models", "you: delete it"),
    ("settings {config} and passwords in {env}, units and drop-ins in /etc/systemd/system", "you: delete them"),
    ("backups, and the timer of Ansible (fedpatch-agent-backup)", "you: delete them"),
    ("the journal of the service", "you: sudo journalctl --rotate, then --vacuum-time"),
    ("the identity {device} at the broker, and its certificate", "the operator: fedpatch device revoke {device}"),
    ("the coordinator's records of rounds, with this device's name and figures", "the operator of fleet {fleet}"),
    ("global models to which this device has contributed", "nobody can take a contribution out of them"),
)
"""Traces that remain after `remove`, and the person who can delete each."""


def _add_remove(app: typer.Typer) -> None:
    @command(app, "remove", example="fedpatch-agent remove --config agent.toml --bus-config bus.toml")
    @cli_options(AgentSettings, find_file=settings_file)
    def remove(
        settings: AgentSettings,
        source: Source[AgentSettings],
        bus_config: Annotated[
            Path | None,
            typer.Option(
                "--bus-config", metavar="FILE", help="Settings of `fedpatch-agent bus`, to clear its topics too."
            ),
        ] = None,
    ) -> None:
        """Clear the retained messages of this device at its brokers, and list what remains and whom to ask.

        The agent must have ended. Nothing on this device is deleted.
        """
        from fedpatch.device_agent.cli.removal import clear_bus, clear_presence

        settings = in_place(settings, source)
        if source.load().origins["state_dir"] == DEFAULT:
            existing(settings.state_dir)  # else a running agent would not be seen
        device = clear_presence(settings, CONNECT_S, SEND_S)
        typer.echo(f"cleared the presence of {device} at {settings.broker}")
        if bus_config is not None:
            for topic in clear_bus(bus_config, settings, device, CONNECT_S, SEND_S):
                typer.echo(f"cleared {topic}")
        else:
            typer.echo("the bus was not asked: name its settings with --bus-config if this device was on one")
        typer.echo("what remains:")
        config = source.file or Path(_SETTINGS)
        paths = {"state": settings.state_dir, "config": config, "env": config.with_suffix(".env")}
        names = {"device": device, "fleet": settings.fleet, **{name: str(path) for name, path in paths.items()}}
        for what, who in REMAINS:
            typer.echo(f"  {what.format(**names)} - {who.format(**names)}")
