"""The commands `fedpatch ca`: the certificate authority of a fleet. The code that makes certificates is imported on call."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedpatch.coordinator.cli.tables import print_json, print_table
from fedpatch.coordinator.pki.certificate_status import IdentityRow, rows
from fedpatch.coordinator.pki.issued_certificates import CA_DAYS, DAYS, DEVICE, must_read
from fedpatch.shared.app.command import AsJson, Group, command, no_options, say
from fedpatch.shared.mqtt.tls_errors import expiry_of

if TYPE_CHECKING:
    from fedpatch.coordinator.pki.certificate_authority import Authority


_DAY_S = 86_400


def show_authority(directory: Path, *, as_json: bool) -> None:
    """Print the CA and all holders; UsageError where there is no CA."""
    index, now = must_read(directory), time.time()
    found, ends = rows(index, now), expiry_of(directory / "ca.crt")
    if as_json:
        print_json(
            {
                "fleet": index.fleet,
                "directory": str(directory),
                "expires_at": ends,
                "holders": [asdict(one) for one in found],
            }
        )
        return
    until = (
        f"good until {_date(ends, now)}"
        if ends is not None
        else "whose certificate is elsewhere: only its record is here"
    )
    typer.echo(f"CA of fleet {index.fleet} in {directory}, {until}")
    _print(found, now)


def show_devices(directory: Path, *, as_json: bool) -> None:
    """Print the devices with their certificates and passwords."""
    now = time.time()
    found = rows(must_read(directory), now, DEVICE)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        _print(found, now)


def _print(found: Sequence[IdentityRow], now: float) -> None:
    table = Table("part", "name", "has", "state", "good until", "others still good", "reason", box=None)
    for one in found:
        until = _date(one.expires_at, now) if one.state != "revoked" else ""
        table.add_row(one.part, one.name, one.kind, one.state, until, str(one.others_good or ""), one.reason)
    print_table(table)


def _date(ends: float | None, now: float) -> str:
    if ends is None:
        return ""
    return f"{time.strftime('%Y-%m-%d', time.gmtime(ends))} ({int((ends - now) // _DAY_S)} days)"


CaDir = Annotated[
    Path | None,
    typer.Option(
        "--ca-dir",
        envvar="FEDPATCH_CA_DIR",
        metavar="PATH",
        help="Directory of the CA; default: ca in the state directory.",
    ),
]
Days = Annotated[int, typer.Option(min=1, max=36_500, metavar="DAYS", help="Validity of the certificate.")]
DeviceId = Annotated[str, typer.Argument(metavar="ID", help="Name of the device.")]
DeviceBroker = Annotated[
    str,
    typer.Option(
        envvar="FEDPATCH_BROKER", metavar="URL", help="URL of the broker; default: from the device's settings."
    ),
]
_CaDays = Annotated[int, typer.Option(min=1, max=36_500, metavar="DAYS", help="Validity of the CA.")]
_BrokerName = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST", help="Host of the broker as in its URL (repeatable)."),
]
_NewKey = Annotated[bool, typer.Option("--new-key", help="Make a new key too.")]
_Out = Annotated[Path, typer.Option(metavar="FILE", help="File to write, mode 0600.")]


def ca_directory(given: Path | None) -> Path:
    """Directory of the CA: as given, or in the coordinator's state directory."""
    from fedpatch.coordinator.settings import CA_DIRECTORY, RunSettings

    state_dir = Path(os.environ.get("FEDPATCH_STATE_DIR") or RunSettings.state_dir)
    return (given or state_dir / CA_DIRECTORY).expanduser().absolute()


def add_ca(app: typer.Typer) -> typer.Typer:
    """Add the commands to `app`, and return their group."""
    group = typer.Typer(
        cls=Group,
        no_args_is_help=True,
        help="Manage the CA of a fleet: certificates of broker, coordinator and watchers.",
    )
    app.add_typer(group, name="ca", epilog="Example: fedpatch ca show")
    group.callback()(no_options)
    _add_init(group)
    _add_broker(group)
    _add_coordinator(group)
    _add_renew(group)
    _add_watcher(group)
    _add_lists(group)
    return group


def _add_init(group: typer.Typer) -> None:
    @command(group, "init", example="fedpatch ca init --fleet kitchen --broker-name broker.local")
    def init(
        fleet: Annotated[str, typer.Option(metavar="NAME", help="Fleet that the CA is for.")],
        broker_name: _BrokerName = None,
        days: Days = DAYS,
        ca_days: _CaDays = CA_DAYS,
        ca_dir: CaDir = None,
    ) -> None:
        """Create a fleet's CA and the certificates of broker and coordinator, or missing parts of them."""
        from fedpatch.coordinator.pki.certificate_authority import Authority
        from fedpatch.coordinator.pki.enrolment import ensure_broker, ensure_coordinator

        directory = ca_directory(ca_dir)
        with Authority.create(directory, fleet, now=time.time(), days=ca_days) as authority:
            made = [f"the CA of fleet {fleet!r} in {directory}"]
            if broker_name and ensure_broker(authority, tuple(broker_name), days=days):
                made.append(f"the broker's certificate for {', '.join(broker_name)}")
            if ensure_coordinator(authority, days=days):
                made.append("the coordinator's certificate")
        say(*(f"there is {one}" for one in made))
        _tell_next(directory)


def _tell_next(directory: Path) -> None:
    made = (directory / "broker" / "broker.crt").exists()
    place = "" if directory == ca_directory(None) else f" --ca-dir {shlex.quote(str(directory))}"
    has = f"{directory}/broker/ has its" if made else f"fedpatch ca broker --broker-name HOST{place} makes its"
    ca, cert, key = (
        shlex.quote(f"{directory}/{name}") for name in ("ca.crt", "coordinator/client.crt", "coordinator/client.key")
    )
    say(
        f"broker: {has} certificate and key; the CA is {directory}/ca.crt, its list {directory}/ca.crl",
        f"coordinator: --ca-file {ca} --cert-file {cert} --key-file {key}",
        f"devices: fedpatch device add ID --broker mqtts://HOST --out FILE{place}",
    )


def _add_broker(group: typer.Typer) -> None:
    @command(group, "broker", example="fedpatch ca broker --broker-name broker.local --broker-name 192.168.1.10")
    def broker(
        broker_name: _BrokerName = None, days: Days = DAYS, new_key: _NewKey = False, ca_dir: CaDir = None
    ) -> None:
        """Renew the broker's certificate, by default for the same names; then reload the broker."""
        from fedpatch.coordinator.pki.enrolment import ensure_broker, opened, server_names
        from fedpatch.shared.errors import UsageError

        with opened(ca_directory(ca_dir)) as authority:
            names = tuple(broker_name or server_names(authority))
            if not names:
                raise UsageError("what is the broker called? name it as in its URL with --broker-name")
            ensure_broker(authority, names, days=days, again=True, new_key=new_key)
            say(f"renewed {authority.directory}/broker/broker.crt for {', '.join(names)}")
        say("give it to the broker, then make it read it: systemctl reload mosquitto")


def _add_coordinator(group: typer.Typer) -> None:
    @command(group, "coordinator", example="fedpatch ca coordinator --days 365")
    def coordinator(
        days: Days = DAYS,
        new_key: _NewKey = False,
        revoke_old: Annotated[
            bool,
            typer.Option("--revoke-old", help="Revoke earlier certificates and make a new key."),
        ] = False,
        password: Annotated[bool, typer.Option("--password", help="Make a password instead of a certificate.")] = False,
        ca_dir: CaDir = None,
    ) -> None:
        """Renew the coordinator's certificate; a running coordinator loads it by itself."""
        from fedpatch.coordinator.pki.certificate_authority import COORDINATOR
        from fedpatch.coordinator.pki.enrolment import ensure_coordinator, give_coordinator_password, opened, revoke
        from fedpatch.coordinator.pki.mosquitto_passwd import password_file

        with opened(ca_directory(ca_dir)) as authority:
            if password:
                path = give_coordinator_password(authority)
                say(f"user name and password are in {path}, for EnvironmentFile= of systemd")
                say(f"give {password_file(authority.directory)} to the broker: systemctl reload mosquitto")
            else:
                ensure_coordinator(authority, days=days, again=True, new_key=new_key or revoke_old)
                say(f"renewed {authority.directory}/coordinator/client.crt; a running coordinator loads it by itself")
            if revoke_old:
                revoke(authority, COORDINATOR, COORDINATOR, reason="replaced", only_old=True)
                tell_broker(authority)


def _add_renew(group: typer.Typer) -> None:
    @command(group, "renew", example="fedpatch ca renew")
    def renew(ca_days: _CaDays = CA_DAYS, ca_dir: CaDir = None) -> None:
        """Renew the CA's own certificate with the same key; all issued certificates stay valid.

        All machines need the new ca.crt, and the broker also the new ca.crl, before the old ones expire. Old and new ones are
        valid side by side.
        """
        from fedpatch.coordinator.pki.enrolment import opened

        with opened(ca_directory(ca_dir)) as authority:
            authority.renew(now=time.time(), days=ca_days)
            say(
                f"renewed {authority.directory}/ca.crt; copy it to the broker, to the coordinator and to every device",
                f"copy {authority.directory}/ca.crl to the broker too, and make it read both: systemctl reload mosquitto; "
                "the former list expires with the former certificate, and then the broker refuses every client",
            )


def _add_watcher(group: typer.Typer) -> None:
    @command(group, "watcher", example="fedpatch ca watcher anna --out anna.pem")
    def watcher(
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name at the broker.")],
        out: _Out,
        days: Days = DAYS,
        ca_dir: CaDir = None,
    ) -> None:
        """Make a file with certificate and key for `fedpatch watch --cert-file FILE`."""
        from fedpatch.coordinator.pki.enrolment import give_watcher, opened

        with opened(ca_directory(ca_dir)) as authority:
            give_watcher(authority, name, out, days=days)
            say(f"{out} holds the certificate and the key of {name}; {authority.directory}/ca.crt is the CA to trust")
            tell_rules(name)

    @command(group, "revoke-watcher", example="fedpatch ca revoke-watcher anna")
    def revoke_watcher(
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name at the broker.")], ca_dir: CaDir = None
    ) -> None:
        """Revoke a watcher's certificate; then reload the broker."""
        from fedpatch.coordinator.pki.certificate_authority import WATCHER
        from fedpatch.coordinator.pki.enrolment import opened, revoke

        with opened(ca_directory(ca_dir)) as authority:
            revoke(authority, WATCHER, name, reason="", only_old=False)
            tell_broker(authority)


def _add_lists(group: typer.Typer) -> None:
    @command(group, "crl", example="fedpatch ca crl")
    def crl(ca_dir: CaDir = None) -> None:
        """Write the revocation list anew and print its path."""
        from fedpatch.coordinator.pki.enrolment import opened

        with opened(ca_directory(ca_dir)) as authority:
            typer.echo(str(authority.write_crl(time.time())))

    @command(group, "show", example="fedpatch ca show --json")
    def show(ca_dir: CaDir = None, as_json: AsJson = False) -> None:
        """Show all certificates and passwords of the CA with their expiry."""
        from fedpatch.coordinator.cli.ca import show_authority

        show_authority(ca_directory(ca_dir), as_json=as_json)


def tell_rules(name: str) -> None:
    """Print the manual steps after a device was added."""
    say(
        f"before {name} can connect, make the broker's rules again (fedpatch broker acl) and reload the broker: "
        "systemctl reload mosquitto"
    )


def tell_broker(authority: Authority) -> None:
    """Print the manual steps after a revocation."""
    from fedpatch.coordinator.pki.mosquitto_passwd import password_file

    files = [str(authority.directory / "ca.crl")]
    if password_file(authority.directory).exists():
        files.append(str(password_file(authority.directory)))
    say(
        f"give {' and '.join(files)} to the broker, with new rules (fedpatch broker acl), and make it read them: "
        "systemctl reload mosquitto",
        "a running coordinator excludes a revoked device within seconds",
        "an open connection of the device ends at the next restart of the broker: systemctl restart mosquitto",
    )
