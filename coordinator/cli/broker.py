"""The command `fedpatch broker acl`: access rules of a fleet for mosquitto or ejabberd, from the topic table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.shared.app.command import command
from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.topics import TOPICS, Party, Topic, check_name

_PARTIES: tuple[Party, ...] = ("coordinator", "device", "watcher")
_NOBODY = '"nobody@nowhere.invalid"'

Allowed = dict[str, list[Party]]


def ejabberd_rules(
    fleet: str,
    host: str,
    devices: Sequence[str],
    watchers: Sequence[str] = (),
    *,
    coordinator_user: str = "coordinator",
) -> str:
    """Format access rules as YAML to merge into ejabberd.yml: `acl`, `access_rules` and two options of mod_mqtt.

    Everything without a rule is forbidden. ejabberd compares the filter of a subscription with the rules, so a forbidden
    subscription is refused with an error.

    Args:
        host: Virtual host of all users.
        devices: Device ids; a device's user name must be its id.
        watchers: User names that may only read the status.
    """
    check_name("fleet", fleet)
    users: dict[Party, Sequence[str]] = {"coordinator": [coordinator_user], "device": devices, "watcher": watchers}
    lines = ["acl:"]
    for party in _PARTIES:
        named = ", ".join(f'"{user}@{host}"' for user in users[party])
        lines += [f"  fedpatch_{party}:", f"    user: [{named or _NOBODY}]"]
    publish: Allowed = {}
    subscribe: Allowed = {}
    for row in TOPICS:
        publish.setdefault(_filter(row, fleet, row.writer), []).append(row.writer)
        for party in (*row.readers, *row.also_read_by):
            subscribe.setdefault(_filter(row, fleet, party), []).append(party)
    lines.append("access_rules:")
    for parties in sorted({tuple(one) for one in (*publish.values(), *subscribe.values())}):
        lines += [f"  {_rule(parties)}:", *(f"    - allow: fedpatch_{party}" for party in parties)]
    lines += ["modules:", "  mod_mqtt:"]
    for option, allowed in (("access_publish", publish), ("access_subscribe", subscribe)):
        lines += [f"    {option}:", *(f'      "{topic}": {_rule(parties)}' for topic, parties in allowed.items())]
    return "\n".join(lines) + "\n"


def _rule(parties: Sequence[Party]) -> str:
    return "_or_".join(("fedpatch", *parties)) if len(parties) > 1 else f"fedpatch_only_{parties[0]}"


def _filter(row: Topic, fleet: str, party: Party) -> str:
    """The topic filter of a party. `%u` means the user's own name."""
    names = {"fleet": fleet, "device": "%u" if party == "device" else "+"}
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "+"), row.pattern)


_PATTERNS = (
    "warning: no device is named, so the rules are patterns, which mosquitto applies to every user: a user with a password or "
    "a certificate of any kind can join the fleet as the device of that name; name the devices with --ca-dir or --device"
)


def members(
    fleet: str | None, devices: list[str] | None, watchers: list[str] | None, ca_dir: Path | None
) -> tuple[str, list[str] | None, list[str]]:
    """Return the fleet, its devices (None: unknown) and its watchers: the named ones, and those not revoked by the CA.

    Raises:
        UsageError: There is no CA, no fleet, or two different fleets.
    """
    if ca_dir is None:
        if fleet is None:
            raise UsageError("whose rules? name the fleet with --fleet, or its CA with --ca-dir")
        return fleet, devices or None, watchers or []
    from fedpatch.coordinator.pki.issued_certificates import DEVICE, WATCHER, read_index

    index = read_index(ca_dir)
    if index is None:
        raise UsageError(f"{ca_dir}: no CA there; make one with `fedpatch ca init`, or name the devices with --device")
    if fleet not in (None, index.fleet):
        raise UsageError(f"{ca_dir} is the CA of fleet {index.fleet!r}, not of {fleet!r}; leave --fleet out")

    def good(part: str) -> list[str]:
        return [name for name in index.names(part) if index.current(part, name)]

    return index.fleet, sorted({*good(DEVICE), *(devices or ())}), sorted({*good(WATCHER), *(watchers or ())})


_Fleet = Annotated[str | None, typer.Option(metavar="NAME", help="Fleet of the rules; with --ca-dir the CA's fleet.")]
_CoordinatorUser = Annotated[str, typer.Option(metavar="NAME", help="User name of the coordinator at the broker.")]
_Device = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Device of the fleet (repeatable)."),
]
_Watcher = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="User of `fedpatch watch` (repeatable)."),
]
_CaDir = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDPATCH_CA_DIR",
        metavar="PATH",
        help="Directory of the fleet's CA: adds its valid devices and watchers.",
    ),
]
_Ejabberd = Annotated[str, typer.Option(metavar="HOST", help="Print rules for ejabberd with virtual host HOST.")]


def add_acl(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "acl", example="fedpatch broker acl --ca-dir fedpatch-state/ca > fedpatch.acl")
    def broker_acl(
        fleet: _Fleet = None,
        coordinator_user: _CoordinatorUser = "coordinator",
        device: _Device = None,
        watcher: _Watcher = None,
        ca_dir: _CaDir = None,
        ejabberd: _Ejabberd = "",
    ) -> None:
        """Print the access rules of a fleet for mosquitto (acl_file) or ejabberd.

        A device's user name must be its id. Without a CA and --device every user is the device of its own name.
        """
        from fedpatch.coordinator.cli.broker import ejabberd_rules
        from fedpatch.shared.wire.topics import mosquitto_acl

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
