"""The command `fedpatch export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedpatch.coordinator.cli.options import StateDir, state_dir_to_read
from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.errors import EXIT_LESS

if TYPE_CHECKING:
    from fedpatch.coordinator.operations.export import GlobalExport


def add_export(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "export", example="fedpatch export last --out model.onnx")
    def export(
        run: Annotated[str, typer.Argument(metavar="RUN", help="Run, by id, its beginning, or: last.")] = "last",
        out: Annotated[
            Path | None,
            typer.Option(
                "--out", metavar="FILE", help="File to write; default: runs/RUN/model.onnx in the state directory."
            ),
        ] = None,
        round: Annotated[
            int | None,
            typer.Option("--round", min=0, metavar="N", help="Number of aggregated rounds: all, or one less."),
        ] = None,
        state_dir: StateDir = None,
        as_json: AsJson = False,
    ) -> None:
        """Write a run's global model as ONNX, with its metadata as JSON beside it.

        Private tensors have their initial values (private_values in the metadata). The outputs are first compared
        with torch's. With a damaged newest checkpoint, the model of the round before is written (exit code 4,
        asked_round, problem).
        """
        import msgspec

        from fedpatch.coordinator.api.client import Client

        exported = Client(state_dir_to_read(state_dir, run)).export(run, out, round)
        if as_json:
            known = msgspec.to_builtins(exported.metadata)
            paths = {"model": str(exported.path), "metadata": str(exported.metadata_path)}
            asked = {"asked_round": exported.asked_round, "problem": exported.problem}
            typer.echo(json.dumps({**paths, **asked, **known}))
            _leave(exported)
        typer.echo(f"model: {exported.path}")
        typer.echo(f"metadata: {exported.metadata_path}")
        if exported.metadata.private_values == "initial":
            what = f"private values (policy {exported.metadata.private}) never left the devices"
            typer.echo(f"{what}: the model has their initial ones", err=True)
        _leave(exported)


def _leave(exported: GlobalExport) -> NoReturn:
    """Exit with code 4 and a message where an earlier round was exported."""
    if not exported.is_earlier:
        raise typer.Exit
    asked, found = exported.asked_round, exported.metadata.round
    typer.echo(f"this is the model of round {found}, not of round {asked}: {exported.problem}", err=True)
    typer.echo("restore that checkpoint from a backup, or let `fedpatch resume` play the round again", err=True)
    raise typer.Exit(EXIT_LESS)
