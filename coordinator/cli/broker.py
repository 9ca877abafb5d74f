"""`fedpatch broker acl`, a command of its own file: the rules are made when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shared.command import command
from shared.errors import UsageError

_PATTERNS = (
    "warning: no device is named, so the rules are patterns, which mosquitto applies to every user: whoever has a password or "
    "a certificate of any kind can join the fleet as the device of that name; name the devices with --ca-dir or --device"
)


def members(
    fleet: str | None, devices: list[str] | None, watchers: list[str] | None, ca_dir: Path | None
) -> tuple[str, list[str] | None, list[str]]:
    """Fleet, devices (None: nobody knows them) and watchers: those given, and all whose identity the CA has not revoked.

    UsageError where there is no CA, no fleet, or two of them.
    """
    if ca_dir is None:
        if fleet is None:
            raise UsageError("whose rules? name the fleet with --fleet, or its CA with --ca-dir")
        return fleet, devices or None, watchers or []
    from coordinator.identity.index import DEVICE, WATCHER
    from coordinator.identity.index_file import read_index

    index = read_index(ca_dir)
    if index is None:
        raise UsageError(f"{ca_dir}: no CA there; make one with `fedpatch ca init`, or name the devices with --device")
    if fleet not in (None, index.fleet):
        raise UsageError(f"{ca_dir} is the CA of fleet {index.fleet!r}, not of {fleet!r}; leave --fleet out")

    def good(part: str) -> list[str]:
        return [name for name in index.names(part) if index.current(part, name)]

    return index.fleet, sorted({*good(DEVICE), *(devices or ())}), sorted({*good(WATCHER), *(watchers or ())})


_Fleet = Annotated[
    str | None, typer.Option(metavar="NAME", help="Fleet that the rules are for; with --ca-dir, the CA's.")
]
_CoordinatorUser = Annotated[str, typer.Option(metavar="NAME", help="User name of the coordinator at the broker.")]
_Device = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A device of the fleet (repeatable); none, and no CA: every other user."),
]
_Watcher = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A user who may look on with `fedpatch watch` (repeatable)."),
]
_CaDir = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDPATCH_CA_DIR",
        metavar="PATH",
        help="Directory of the fleet's CA: all devices and watchers that it knows and has not revoked.",
    ),
]
_Ejabberd = Annotated[
    str, typer.Option(metavar="HOST", help="Print the rules of an ejabberd whose users are those of HOST instead.")
]


def add_acl(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "acl", example="fedpatch broker acl --ca-dir fedpatch-state/ca > fedpatch.acl")
    def broker_acl(
        fleet: _Fleet = None,
        coordinator_user: _CoordinatorUser = "coordinator",
        device: _Device = None,
        watcher: _Watcher = None,
        ca_dir: _CaDir = None,
        ejabberd: _Ejabberd = "",
    ) -> None:
        """Print mosquitto's acl_file for a fleet: who may write and read which topic."""
        from coordinator.ejabberd_rules import ejabberd_rules
        from shared.topics import mosquitto_acl

        of_fleet, devices, watchers = members(fleet, device, watcher, ca_dir)
        if not ejabberd:
            text = mosquitto_acl(of_fleet, coordinator_user, devices, watchers)
        elif devices is not None:
            text = ejabberd_rules(of_fleet, ejabberd, devices, watchers, coordinator_user=coordinator_user)
        else:
            raise UsageError("ejabberd's rules name each device; name them with --device or --ca-dir")
        if devices is None:
            typer.echo(f"fedpatch: {_PATTERNS}", err=True)
        typer.echo(text, nl=False)
