"""`fedpatch inventory`, a command of its own file: what it needs is imported when it runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedpatch.coordinator.cli.options import StateDir
from fedpatch.shared.app.command import command
from fedpatch.shared.errors import UsageError


def add_inventory(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "inventory", example="fedpatch inventory --list --domain .local")
    def inventory(
        all_hosts: Annotated[bool, typer.Option("--list", help="All groups and hosts.")] = False,
        host: Annotated[str | None, typer.Option(metavar="NAME", help="The variables of one host.")] = None,
        fleet: Annotated[str | None, typer.Option(metavar="NAME", help="Only devices of this fleet.")] = None,
        domain: Annotated[
            str,
            typer.Option(
                envvar="FEDPATCH_INVENTORY_DOMAIN",
                metavar="TEXT",
                help="What makes a device's id its host name, e.g. .local; without it no address is given.",
            ),
        ] = "",
        state_dir: StateDir = None,
    ) -> None:
        """Print the devices that were ever seen, but for those revoked, as an inventory for Ansible; always JSON."""
        if all_hosts == (host is not None):
            raise UsageError("say either --list or --host NAME, as Ansible does")
        from fedpatch.coordinator.operations.inventory import host_variables
        from fedpatch.coordinator.operations.inventory import inventory as made
        from fedpatch.coordinator.pki.issued_certificates import read_index
        from fedpatch.coordinator.settings import CA_DIRECTORY
        from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
        from fedpatch.coordinator.storage.state_dirs import find

        found = find(state_dir, None)
        with Registry(found / REGISTRY_FILE, readonly=True) as registry:
            devices = [one for one in registry.devices() if fleet in (None, one.fleet)]
        index = read_index(found / CA_DIRECTORY)
        known = made(devices, domain=domain, without=index.revoked_devices() if index is not None else ())
        typer.echo(json.dumps(known if host is None else host_variables(known, host), indent=1))
