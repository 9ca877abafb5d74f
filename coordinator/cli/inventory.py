"""The command `fedpatch inventory`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedpatch.coordinator.cli.options import StateDir, state_dir_to_read
from fedpatch.shared.app.command import command
from fedpatch.shared.errors import UsageError


def add_inventory(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "inventory", example="fedpatch inventory --list --domain .local")
    def inventory(
        all_hosts: Annotated[bool, typer.Option("--list", help="Print all groups and hosts.")] = False,
        host: Annotated[str | None, typer.Option(metavar="NAME", help="Print the variables of one host.")] = None,
        fleet: Annotated[str | None, typer.Option(metavar="NAME", help="Only devices of this fleet.")] = None,
        domain: Annotated[
            str,
            typer.Option(
                envvar="FEDPATCH_INVENTORY_DOMAIN",
                metavar="TEXT",
                help="Suffix that makes a device id a host name, such as .local.",
            ),
        ] = "",
        state_dir: StateDir = None,
    ) -> None:
        """Print all devices ever seen and not revoked as a dynamic inventory for Ansible.

        Groups are devices, relays, online, offline, fleet_NAME, task_NAME and version_X_Y_Z.
        """
        if all_hosts == (host is not None):
            raise UsageError("say either --list or --host NAME, as Ansible does")
        from fedpatch.coordinator.operations import inventory
        from fedpatch.coordinator.pki.issued_certificates import read_index
        from fedpatch.coordinator.settings import CA_DIRECTORY
        from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry

        found = state_dir_to_read(state_dir)
        with Registry(found / REGISTRY_FILE, readonly=True) as registry:
            devices = [one for one in registry.devices() if fleet in (None, one.fleet)]
        index = read_index(found / CA_DIRECTORY)
        known = inventory.inventory(
            devices, domain=domain, without=index.revoked_devices() if index is not None else ()
        )
        typer.echo(json.dumps(known if host is None else inventory.host_variables(known, host), indent=1))
