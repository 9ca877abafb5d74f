"""The command `fedpatch console`, in a file of its own: the web server is imported when the command runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpatch.coordinator.cli.options import StateDir, broker_options, state_dir_to_read
from fedpatch.shared.app.command import AsJson, command, say
from fedpatch.shared.app.signals import exit_code_of, forward_signals
from fedpatch.shared.errors import UsageError

if TYPE_CHECKING:
    from fedpatch.coordinator.console.event_streams import EventStreams
    from fedpatch.coordinator.console.feed import Feed
    from fedpatch.shared.mqtt.broker_settings import BrokerSettings

_Path = Path | None
_Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on.")]
_Actions = Annotated[bool, typer.Option("--actions", help="Let an operator act after a login.")]
_TokenFile = Annotated[_Path, typer.Option("--token-file", metavar="PATH", help="File with the token, mode 0600.")]
_TlsCert = Annotated[_Path, typer.Option("--tls-cert", metavar="PATH", help="Certificate of the console, PEM.")]
_TlsKey = Annotated[_Path, typer.Option("--tls-key", metavar="PATH", help="Its key, PEM; default: in --tls-cert.")]
_ClientCa = Annotated[_Path, typer.Option("--client-ca", metavar="PATH", help="CA of the browsers' certificates, PEM.")]
_Name = Annotated[list[str] | None, typer.Option("--name", metavar="HOST", help="Further host name of the page.")]
_Begin = Annotated[
    list[Path] | None,
    typer.Option("--begin", metavar="PATH", help="Settings of a run that an operator may begin (repeatable)."),
]
_OnStdin = Annotated[bool, typer.Option("--status-on-stdin", hidden=True, help="Statuses come on stdin.")]
_NO_BROKER = "none"
_NICENESS = 5
"""Lower priority of the console: without idle processors, the coordinator's rounds come before pages."""


def add_console(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "console", example="fedpatch console --state-dir fedpatch-state")
    @broker_options("Broker; default: the newest run's; none: no broker.")
    def console(
        given: dict[str, Any],
        state_dir: StateDir = None,
        listen: _Listen = "127.0.0.1:8465",
        actions: _Actions = False,
        token_file: _TokenFile = None,
        tls_cert: _TlsCert = None,
        tls_key: _TlsKey = None,
        client_ca: _ClientCa = None,
        name: _Name = None,
        begin: _Begin = None,
        status_on_stdin: _OnStdin = False,
        as_json: AsJson = False,
    ) -> None:
        """Serve a live web page of runs, rounds and devices, until Ctrl-C.

        It reads the state directory and the coordinator's status messages, and changes nothing. With --actions an
        operator can log in with the token and hold devices, stop a run, or begin one of --begin. An address that
        other machines reach needs --tls-cert and --token-file or --client-ca (else exit code 2).
        """
        from fedpatch.coordinator.console.beside import need_extra

        need_extra()
        from fedpatch.coordinator.console.listen_terms import ConsoleTerms
        from fedpatch.coordinator.console.server import serve
        from fedpatch.shared.config.listen_address import parse_address
        from fedpatch.shared.config.secrets import pop_password

        terms = ConsoleTerms(
            listen=parse_address(listen),
            actions=actions,
            token_file=token_file,
            tls_cert=tls_cert,
            tls_key=tls_key,
            client_ca=client_ca,
            names=tuple(name or ()),
            begin=tuple(begin or ()),
        )
        terms.check()
        place = state_dir_to_read(state_dir)
        watches = not status_on_stdin and given["broker"] != _NO_BROKER
        password = pop_password(os.environ)  # a run that is begun reads its password by its own settings
        settings = _broker_of(given, place, begin, password) if watches else None
        page = _Page(given, place, settings, password, on_stdin=status_on_stdin, actions=actions, as_json=as_json)
        serve(terms, place, page.feed_of, page.ready, page.around)
        raise typer.Exit(exit_code_of(page.ended[0]) if page.ended else 0)


@dataclass
class _Page:
    """The page of one call of the command: the source of its statuses, and its end.

    Attributes:
        given: The options of the broker.
        place: The state directory.
        settings: The connection to the broker; None without one.
        password: The broker's password.
        on_stdin: Whether statuses come on stdin.
        actions: Whether an operator can act after a login.
        as_json: Whether the ready line is JSON.
        ended: The signals that ended the page.
    """

    given: dict[str, Any]
    place: Path
    settings: BrokerSettings | None
    password: str | None
    on_stdin: bool
    actions: bool
    as_json: bool
    ended: list[int] = field(default_factory=list)

    @property
    def fleet(self) -> str | None:
        """The fleet that the page shows; None for all."""
        return self.given["fleet"] or (self.settings.fleet if self.settings is not None else None)

    def ready(self, url: str, token_file: Path | None) -> None:
        """Tell the operator where the page is."""
        from fedpatch.coordinator.console.server import ready_line
        from fedpatch.coordinator.storage.database.opening import exists
        from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE

        os.nice(_NICENESS)
        if self.as_json:
            typer.echo(ready_line(url, token_file, actions=self.actions))
            return
        token = [f"token: in {token_file}"] if token_file else []
        none = f"no runs in {self.place} yet; --state-dir names another place"
        say(f"console: {url}", *token, *([] if exists(self.place / REGISTRY_FILE) else [none]), "Ctrl-C ends it")

    def feed_of(self, streams: EventStreams) -> Feed:
        """Return the feed of the page's streams."""
        from fedpatch.coordinator.console.feed import Feed, RegistryReader
        from fedpatch.coordinator.observability.status_follower import StatusFollower

        watched = self.on_stdin or self.settings is not None
        where = str(self.settings.broker) if self.settings is not None else "the coordinator"
        follower = StatusFollower(self.fleet or "", where, time.monotonic()) if watched else None
        return Feed(RegistryReader(self.place, self.fleet), follower, streams.publish_from_thread)

    @contextmanager
    def around(self, feed: Feed, stop: Callable[[], None]) -> Iterator[None]:
        """Feed the page until a signal ends it."""
        from fedpatch.coordinator.console.sources import from_broker, from_stdin

        def tell(number: int) -> None:
            self.ended.append(number)
            stop()

        with ExitStack() as stack:
            stack.enter_context(forward_signals(tell))
            if self.on_stdin:
                stack.enter_context(from_stdin(self.fleet or "", feed, stop))
            elif self.given["broker"] != _NO_BROKER:
                stack.enter_context(from_broker(self.settings, feed, self._newest))
            yield

    def _newest(self) -> BrokerSettings | None:
        """Return the connection to the broker of the newest run, unless the operator names a broker."""
        from fedpatch.coordinator.cli.watch import broker_settings

        if self.given["broker"] is not None:
            return self.settings
        return broker_settings({**self.given, "fleet": self.fleet}, self.place, self.password)


def _broker_of(
    given: dict[str, Any], place: Path, begin: list[Path] | None, password: str | None
) -> BrokerSettings | None:
    """Return the connection to the broker; None where there is no broker, no run and no file of settings."""
    from fedpatch.coordinator.cli.watch import broker_settings, say_on_stderr
    from fedpatch.coordinator.settings import RunSettings
    from fedpatch.shared.config.load import load

    try:
        return broker_settings(given, place, password, say_on_stderr)
    except UsageError:
        if given["broker"] is not None:
            raise
        # The file names the password of its own user.
        return load(RunSettings, file=begin[0], environ=os.environ, flags={}) if begin else None
