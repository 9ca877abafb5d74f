"""The commands `fedpatch device add|rotate|revoke|list`; invite.py has those for enrolment with a word."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpatch.coordinator.cli.ca import (
    CaDir,
    Days,
    DeviceBroker,
    DeviceId,
    add_ca,
    ca_directory,
    tell_broker,
    tell_rules,
)
from fedpatch.coordinator.cli.invite import add_invitations, add_serve
from fedpatch.coordinator.pki.issued_certificates import DAYS
from fedpatch.shared.app.command import AsJson, Group, command, no_options, say

if TYPE_CHECKING:
    from fedpatch.coordinator.pki.certificate_authority import Authority

_Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Bundle to write, mode 0600; default: ID.bundle.")]
_Password = Annotated[bool, typer.Option("--password", help="Make a password instead of a certificate.")]


def add_identities(app: typer.Typer) -> None:
    """Add the commands `ca` and `device` to `app`."""
    add_serve(add_ca(app))
    group = typer.Typer(
        cls=Group, no_args_is_help=True, help="Manage the identities of devices: add or invite, rotate, revoke, list."
    )
    app.add_typer(group, name="device", epilog="Example: fedpatch device list")
    group.callback()(no_options)
    _add_bundles(group)
    add_invitations(group)
    _add_revoke(group)
    _add_list(group)


def _add_bundles(group: typer.Typer) -> None:
    @command(group, "add", example="fedpatch device add pi-1 --broker mqtts://broker.local --out pi-1.bundle")
    def add(
        device: DeviceId,
        out: _Out = None,
        broker: DeviceBroker = "",
        days: Days = DAYS,
        password: _Password = False,
        ca_dir: CaDir = None,
    ) -> None:
        """Enrol a new device: write the bundle for `fedpatch-agent enrol`.

        The bundle is the device's identity: transfer it in a trusted way and delete it afterwards.
        """
        _write(device, out, broker, days, password, ca_dir, renewal=False)

    @command(group, "rotate", example="fedpatch device rotate pi-1 --out pi-1.bundle")
    def rotate(
        device: DeviceId,
        out: _Out = None,
        broker: DeviceBroker = "",
        days: Days = DAYS,
        password: _Password = False,
        ca_dir: CaDir = None,
    ) -> None:
        """Write a new bundle for an enrolled device.

        Its certificate stays valid until it is revoked, its password until the broker reads the new file.
        """
        path = _write(device, out, broker, days, password, ca_dir, renewal=True)
        if not password:
            say(f"once {path} is installed, take the old one back: fedpatch device revoke {device} --old")


def _write(
    device: str, out: Path | None, broker: str, days: int, password: bool, ca_dir: Path | None, *, renewal: bool
) -> Path:
    from fedpatch.coordinator.pki.enrolment import enrol, opened
    from fedpatch.coordinator.pki.mosquitto_passwd import password_file

    path = out or Path(f"{device}.bundle")
    directory = ca_directory(ca_dir)
    with opened(directory) as authority:
        enrol(authority, device, path, broker=broker, days=days, password=password, renewal=renewal)
        _end_invitation(authority, device)
    say(f"{path} holds the identity of {device}; on the device: fedpatch-agent enrol {path.name}, then delete it")
    if password:
        say(f"give {password_file(directory)} to the broker: systemctl reload mosquitto")
    if not renewal:
        tell_rules(device)
    return path


def _add_revoke(group: typer.Typer) -> None:
    @command(group, "revoke", example="fedpatch device revoke pi-1 --reason stolen")
    def revoke(
        device: DeviceId,
        reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, shown with the device.")] = "",
        old: Annotated[
            bool, typer.Option("--old", help="Revoke only the replaced ones; the newest stays valid.")
        ] = False,
        ca_dir: CaDir = None,
    ) -> None:
        """Revoke the certificates and passwords of a device, and end its invitation.

        A running coordinator excludes it within seconds, the broker after `systemctl reload mosquitto`; an open
        connection ends at the broker's next restart.
        """
        from fedpatch.coordinator.pki import enrolment
        from fedpatch.coordinator.pki.certificate_authority import DEVICE

        with enrolment.opened(ca_directory(ca_dir)) as authority:
            taken = enrolment.revoke(authority, DEVICE, device, reason=reason[:200], only_old=old)
            what = "1 certificate or password" if len(taken) == 1 else f"{len(taken)} certificates or passwords"
            say(f"revoked {what} of {device}" if taken else f"nothing of {device} was left to revoke")
            tell_broker(authority)
            if not old:
                _end_invitation(authority, device)


def _end_invitation(authority: Authority, device: str) -> None:
    """End the invitation of a device, since its holder could still ask for a certificate with its word."""
    from fedpatch.coordinator.pki.invitations import InvitationStore

    if InvitationStore(authority.directory).end_of(device):
        say(f"the invitation of {device} has ended")


def _add_list(group: typer.Typer) -> None:
    @command(group, "list", example="fedpatch device list --json")
    def list_devices(ca_dir: CaDir = None, as_json: AsJson = False) -> None:
        """List the enrolled devices with kind, state and expiry of their identity."""
        from fedpatch.coordinator.cli.ca import show_devices

        show_devices(ca_directory(ca_dir), as_json=as_json)
