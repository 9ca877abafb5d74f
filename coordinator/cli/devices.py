"""The commands `fedpatch devices` and its subcommands quarantine, release, drain and resume.

A running coordinator reads the same state directory and applies a change within seconds.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpatch.coordinator.cli.options import InnerStateDir, StateDir, state_dir_to_read
from fedpatch.shared.app.command import AsJson, Group, command, with_debug

if TYPE_CHECKING:
    from fedpatch.coordinator.api.client import Client
    from fedpatch.coordinator.rounds.device_record import DeviceInfo

_Fleet = Annotated[str | None, typer.Option(metavar="NAME", help="Only devices of this fleet.")]
_Device = Annotated[str, typer.Argument(metavar="ID", help="Name of the device.")]
_Reason = Annotated[str, typer.Option(metavar="TEXT", help="Reason, shown with the device.")]
# By the hold that ends: the other one, and the command that ends that.
_OTHER_HOLDS = {"drained": ("quarantined", "release"), "quarantined": ("drained", "resume")}


def add_devices(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    devices_app = typer.Typer(cls=Group, invoke_without_command=True)
    app.add_typer(devices_app, name="devices", epilog="Example: fedpatch devices --fleet kitchen")

    def devices(
        context: typer.Context, state_dir: StateDir = None, fleet: _Fleet = None, as_json: AsJson = False
    ) -> None:
        """List all devices ever seen with the state of the last run: task, counts of outcomes, last reason.

        The subcommands drain or quarantine a device or end that, within seconds and for later runs too.
        """
        if context.invoked_subcommand is not None:
            # Options before the name of a subcommand apply to the subcommand unless it has its own.
            context.default_map = {
                context.invoked_subcommand: {"state_dir": state_dir, "fleet": fleet, "as_json": as_json}
            }
            return
        from fedpatch.coordinator.cli.tables import print_devices

        print_devices(_client(state_dir).devices(fleet), time.time(), as_json=as_json)

    devices_app.callback()(with_debug(devices))
    _add_hold(devices_app)
    _add_lift(devices_app)


def _add_hold(app: typer.Typer) -> None:
    @command(app, "quarantine", example="fedpatch devices quarantine pi-7 --reason 'sends nonsense'")
    def quarantine(
        device: _Device, reason: _Reason, state_dir: InnerStateDir = None, fleet: _Fleet = None, as_json: AsJson = False
    ) -> None:
        """Reject a device's messages, also in the open round, and ask it no more until its release.

        After --quarantine-after offences this happens automatically. The hold is of this state directory.
        """
        _hold(device, "quarantined", reason, state_dir, fleet, as_json)

    @command(app, "drain", example="fedpatch devices drain pi-7 --reason 'new battery'")
    def drain(
        device: _Device,
        reason: _Reason = "maintenance",
        state_dir: InnerStateDir = None,
        fleet: _Fleet = None,
        as_json: AsJson = False,
    ) -> None:
        """Drain a device: no further rounds until `devices resume`; current work still counts.

        The hold is of this state directory. `fedpatch device revoke` holds for all runs with the fleet's CA.
        """
        _hold(device, "drained", reason, state_dir, fleet, as_json)


def _add_lift(app: typer.Typer) -> None:
    @command(app, "release", example="fedpatch devices release pi-7")
    def release(
        device: _Device, state_dir: InnerStateDir = None, fleet: _Fleet = None, as_json: AsJson = False
    ) -> None:
        """Release a device from quarantine and reset its offences."""
        _lift(device, "quarantined", state_dir, fleet, as_json)

    @command(app, "resume", example="fedpatch devices resume pi-7")
    def resume(device: _Device, state_dir: InnerStateDir = None, fleet: _Fleet = None, as_json: AsJson = False) -> None:
        """End the drain of a device: it is asked again."""
        _lift(device, "drained", state_dir, fleet, as_json)


def _hold(device: str, kind: str, reason: str, state_dir: Path | None, fleet: str | None, as_json: bool) -> None:
    client = _client(state_dir)
    change = (client.quarantine if kind == "quarantined" else client.drain)(device, reason, fleet)
    if not change.changed:
        typer.echo(f"{change.device.id} is {kind} already; reason and time stay as they were", err=True)
    _print(change.device, as_json)


def _lift(device: str, kind: str, state_dir: Path | None, fleet: str | None, as_json: bool) -> None:
    client = _client(state_dir)
    change = (client.release if kind == "quarantined" else client.resume_device)(device, fleet)
    if not change.changed:
        typer.echo(f"{change.device.id} was not {kind}", err=True)
    other, remedy = _OTHER_HOLDS[kind]
    if getattr(change.device, other) is not None:
        options = (f" --fleet {fleet}" if fleet else "") + (f" --state-dir {state_dir}" if state_dir else "")
        words = f"end that with fedpatch devices {remedy} {device}{options}"
        typer.echo(f"{change.device.id} is still {other}; {words}", err=True)
    _print(change.device, as_json)


def _client(state_dir: Path | None) -> Client:
    from fedpatch.coordinator.api.client import Client

    return Client(state_dir_to_read(state_dir))


def _print(device: DeviceInfo, as_json: bool) -> None:
    from fedpatch.coordinator.cli.tables import print_devices, print_json

    if as_json:
        print_json(asdict(device))
    else:
        print_devices([device], time.time(), as_json=False)
