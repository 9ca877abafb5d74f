"""The commands `fedpatch device invite|requests|approve|refuse` and `fedpatch ca serve`: enrolment with a one-time word."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from fedpatch.coordinator.cli.ca import CaDir, Days, DeviceBroker, DeviceId, ca_directory, tell_rules
from fedpatch.coordinator.cli.tables import print_json, print_table
from fedpatch.coordinator.pki.issued_certificates import DAYS, must_read
from fedpatch.shared.app.command import AsJson, command, say
from fedpatch.shared.app.formatting import minute
from fedpatch.shared.config.enrolment_word import PORT
from fedpatch.shared.errors import UsageError

_HOURS = 24
_ANYWHERE = f"0.0.0.0:{PORT}"  # devices are on other machines
_Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Names of devices.")]


def add_invitations(group: typer.Typer) -> None:
    """Add the operator's commands to the group `device`."""
    _add_invite(group)
    _add_requests(group)
    _add_decisions(group)


def _add_invite(group: typer.Typer) -> None:
    @command(group, "invite", example="fedpatch device invite pi-2 --broker mqtts://broker.local")
    def invite(
        device: DeviceId,
        broker: DeviceBroker = "",
        hours: Annotated[int, typer.Option(min=1, max=720, metavar="HOURS", help="Validity of the word.")] = _HOURS,
        days: Days = DAYS,
        renew: Annotated[
            bool, typer.Option("--renew", help="The device is enrolled already; its certificate stays valid.")
        ] = False,
        ca_dir: CaDir = None,
    ) -> None:
        """Print a one-time word with which a new device asks for its certificate: `fedpatch-agent enrol --from`.

        The device's private key never leaves it. A second word ends the first one.
        """
        from fedpatch.coordinator.pki import invitations
        from fedpatch.coordinator.pki.enrolment import opened

        with opened(ca_directory(ca_dir)) as authority:
            word = invitations.invite(
                authority, device, now=time.time(), broker=broker, days=days, hours=hours, renewal=renew
            )
        typer.echo(word)
        say(
            f"good once, for {device}, for {hours} h; on the device: fedpatch-agent enrol --from HOST:{PORT} --word {word}",
            "here: fedpatch ca serve takes its request, fedpatch device approve answers it",
        )


def _add_requests(group: typer.Typer) -> None:
    @command(group, "requests", example="fedpatch device requests --json")
    def requests(ca_dir: CaDir = None, as_json: AsJson = False) -> None:
        """List the invited devices, and the codes of those that ask for a certificate."""
        from fedpatch.coordinator.pki.invitations import InvitationStore

        directory = ca_directory(ca_dir)
        must_read(directory)
        found = InvitationStore(directory).rows(time.time())
        if as_json:
            print_json([asdict(one) for one in found])
            return
        table = Table("name", "state", "code", "from", "asked at", "word ends", box=None)
        for one in found:
            asked = minute(one.asked_at) if one.asked_at else ""
            table.add_row(one.device, one.state, one.code, one.address, asked, minute(one.ends))
        print_table(table)


def _add_decisions(group: typer.Typer) -> None:
    @command(group, "approve", example="fedpatch device approve pi-2")
    def approve(devices: _Ids, ca_dir: CaDir = None) -> None:
        """Issue the certificates for which invited devices ask. Compare the code with that on the device first."""
        from fedpatch.coordinator.pki import invitations
        from fedpatch.coordinator.pki.enrolment import opened

        with opened(ca_directory(ca_dir)) as authority:
            for device in devices:
                code = invitations.approve(authority, device, time.time())
                say(f"approved {device}, whose request has the code {code}")
        tell_rules(" and ".join(devices))

    @command(group, "refuse", example="fedpatch device refuse pi-2")
    def refuse(devices: _Ids, ca_dir: CaDir = None) -> None:
        """Delete invitations: their words and requests count no more. A certificate that was approved stays valid."""
        from fedpatch.coordinator.pki.enrolment import opened
        from fedpatch.coordinator.pki.invitations import InvitationStore

        with opened(ca_directory(ca_dir)) as authority:
            kept = InvitationStore(authority.directory)
            for device in devices:
                if not kept.end_of(device):
                    raise UsageError(
                        f"{device!r} is not invited: there is nothing to refuse; see fedpatch device requests"
                    )
                say(f"the invitation of {device} has ended")


def add_serve(group: typer.Typer) -> None:
    """Add `serve` to the group `ca`."""

    @command(group, "serve", example="fedpatch ca serve")
    def serve(
        listen: Annotated[
            str, typer.Option(metavar="HOST:PORT", help="Address to listen on; devices must reach it.")
        ] = _ANYWHERE,
        ca_dir: CaDir = None,
    ) -> None:
        """Take the requests of invited devices until Ctrl-C. It never reads the CA's key, so `device approve` decides."""
        from fedpatch.coordinator.pki.enrolment_server import EnrolmentServer
        from fedpatch.shared.app.signals import interruptible
        from fedpatch.shared.config.listen_address import parse_address

        directory = ca_directory(ca_dir)
        must_read(directory)
        with interruptible():
            server = EnrolmentServer(parse_address(listen), directory, say)
            say(f"devices can ask at {server.address}; fedpatch device requests lists them")
            try:
                server.serve()
            except KeyboardInterrupt:
                say("no device can ask any more")
