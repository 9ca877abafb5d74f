"""The command `fedpatch metrics`."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Annotated

import typer

from fedpatch.coordinator.cli.options import StateDir, state_dir_to_read
from fedpatch.shared.app.command import command, say
from fedpatch.shared.app.signals import exit_code_of, forward_signals
from fedpatch.shared.config.listen_address import parse_address
from fedpatch.shared.errors import UsageError

_Run = Annotated[str, typer.Argument(metavar="RUN", help="Run, by id, its beginning, or: last.")]


def add_metrics(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "metrics", example="fedpatch metrics last --serve 127.0.0.1:9464")
    def metrics(
        run: _Run = "last",
        state_dir: StateDir = None,
        serve: Annotated[
            str | None,
            typer.Option(metavar="HOST:PORT", help="Serve them to Prometheus, at /metrics, until a signal."),
        ] = None,
    ) -> None:
        """Print the last metrics of a finished run for Prometheus, or serve them.

        They have the names of the running coordinator's metrics, and fedpatch_run_ended. The coordinator's service
        serves them after its run (`fedpatch run --keep-metrics`).
        """
        from fedpatch.coordinator.api.client import Client
        from fedpatch.coordinator.observability import metrics_endpoint
        from fedpatch.coordinator.observability.ended_run import ended_metrics

        address = parse_address(serve) if serve is not None else None
        client = Client(state_dir_to_read(state_dir, run))
        shown = client.show(run)
        registry = ended_metrics(client.run_info(shown.run), shown.rounds)
        if address is None:
            from prometheus_client import generate_latest

            typer.echo(generate_latest(registry).decode(), nl=False)
            return
        try:
            stop, url = metrics_endpoint.serve(registry, address)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"--serve {address}: cannot listen there: {why}; name another HOST:PORT") from error
        try:
            come: SimpleQueue[int] = SimpleQueue()
            with forward_signals(come.put):
                say(f"last metrics of run {shown.run}: {url}")
                number = come.get()
        finally:
            stop()
        raise typer.Exit(exit_code_of(number))
