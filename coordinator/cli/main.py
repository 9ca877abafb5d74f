"""The command line `fedpatch`: run the coordinator, and look at what it has done.

stdout gets results only (with `--json` a single JSON document), stderr everything else. What a command needs beyond this
is imported when it runs, so that help, `runs` and `show` come at once. Further commands, such as `simulate`, are found as
entry points: this side imports none of them.

`fedpatch unit`, a command of its own file: what it looks at is imported when it runs.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedpatch.coordinator.cli.broker import add_acl
from fedpatch.coordinator.cli.devices import add_devices
from fedpatch.coordinator.cli.doctor import add_doctor
from fedpatch.coordinator.cli.enrol import add_identities
from fedpatch.coordinator.cli.export import add_export
from fedpatch.coordinator.cli.inventory import add_inventory
from fedpatch.coordinator.cli.options import PasswordFile, StateDir
from fedpatch.coordinator.cli.report import add_report
from fedpatch.coordinator.cli.watch import add_watch
from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.command import AsJson, Group, command, make_app, say, with_debug
from fedpatch.shared.app.signals import EXIT_INTERRUPTED, exit_code_of, ignore_signals, interruptible, signals_told
from fedpatch.shared.config.load import cli_options
from fedpatch.shared.config.secrets import pop_password
from fedpatch.shared.errors import BrokerError, UsageError
from fedpatch.shared.task_checks.command import add_check_task

if TYPE_CHECKING:
    from fedpatch.coordinator.observability.live_view import RunView
    from fedpatch.coordinator.rounds.run_records import RunSummary
    from fedpatch.coordinator.storage.run_registry import Registry


def add_unit(app: typer.Typer) -> None:
    """Give `app` the command."""

    @command(app, "unit", example="fedpatch unit --user fedpatch > fedpatch-coordinator.service")
    def unit(
        user: Annotated[str, typer.Option(metavar="NAME", help="System user that the service runs as.")] = "fedpatch",
        config: Annotated[Path, typer.Option(metavar="PATH", help="The coordinator's settings.")] = Path(
            "/etc/fedpatch/coordinator.toml"
        ),
        state_dir: Annotated[Path, typer.Option(metavar="PATH", help="The coordinator's state directory.")] = Path(
            "/var/lib/fedpatch-coordinator"
        ),
    ) -> None:
        """Print the systemd unit that runs this installation's coordinator as a service, confined."""
        from fedpatch.shared.app.systemd_unit import COORDINATOR, unit_of_this_installation

        typer.echo(unit_of_this_installation(COORDINATOR, user=user, config=config, state_dir=state_dir), nl=False)


NAME = "fedpatch"

app = make_app(
    NAME,
    "Federated learning over MQTT for fleets of small devices, with a private patch on each of them.",
    panels={
        "Try it on this machine": ["demo", "simulate", "check-task", "tasks", "strategies"],
        "Train with a fleet": ["doctor", "run", "resume"],
        "Look at runs and devices": ["watch", "runs", "show", "report", "devices", "export"],
        "Set a fleet up": ["ca", "device", "broker", "inventory", "unit"],
    },
)
broker_app = typer.Typer(cls=Group, invoke_without_command=True)
app.add_typer(broker_app, name="broker", epilog="Example: fedpatch broker --port 1883")

Run = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, the beginning of one, or: last.")]

_SHOWN_PLACES = 3
_EXIT_CODES = {"failed": 1, "interrupted": EXIT_INTERRUPTED}


@command(app, "demo", example="fedpatch demo --devices 5 --target-ua 0.95 --out /tmp/demo")
@cli_options(DemoSettings)
def demo(settings: DemoSettings, as_json: AsJson = False) -> None:
    """Train a small fleet on this machine: broker, devices and coordinator, all real."""
    from fedpatch.coordinator.demo.demo import run_demo

    with interruptible():
        with _view() as view:
            done = run_demo(settings, view)
        say(
            f"patches: {done.devices_dir}/*/patches",
            f"logs: {done.devices_dir}/*.log",
            f"rounds: fedpatch show {done.summary.run} --state-dir {shlex.quote(str(done.state_dir))}",
        )
        _end(done.summary, as_json)


@command(app, "run", example="fedpatch run --broker mqtts://broker.local --task digits --devices 4 --target-ua 0.97")
@cli_options(RunSettings)
def run(
    settings: RunSettings,
    new: Annotated[bool, typer.Option("--new", help="Begin a new run even where the last one was cut short.")] = False,
    unless_done: Annotated[
        bool, typer.Option("--unless-done", help="Begin none after a run with these settings that came to its end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train with the devices of a fleet, and stay until the run ends.

    A run with the same settings whose coordinator was killed is taken up where it was.
    """
    from fedpatch.coordinator.runtime.run_execution import run_or_go_on

    with interruptible():
        with _view() as view:
            summary = run_or_go_on(settings, view, new=new, unless_done=unless_done)
            ignore_signals()
        _say_how_to_resume(summary, settings.state_dir)
        _end(summary, as_json)


@command(app, "resume", example="fedpatch resume last --rounds 60")
def resume(
    run: Run,
    state_dir: StateDir = None,
    broker: Annotated[str | None, typer.Option(metavar="URL", help="Another broker than the run began with.")] = None,
    password_file: PasswordFile = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Another number of rounds to end after, in all.")] = None,
    target_ua: Annotated[float | None, typer.Option(help="Another user accuracy to end at.")] = None,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Another address for metrics.")] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another encoding from the next round on.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow mqtt:// elsewhere, without TLS.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a run up again where it was, with the settings it began with.

    A password for the broker is read from --password-file, FEDPATCH_PASSWORD, or the file that the run began with.
    """
    from fedpatch.coordinator.runtime.run_execution import resume_run
    from fedpatch.coordinator.storage.database import must_exist
    from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
    from fedpatch.coordinator.storage.state_dirs import find_to_resume

    found = find_to_resume(state_dir, run)
    must_exist(found / REGISTRY_FILE)  # where there is none, none is to be made
    password = pop_password(os.environ)
    with interruptible():
        with _view() as view:
            summary = resume_run(
                found,
                run,
                view,
                broker=broker,
                password=None if password_file else password,
                password_file=password_file,
                rounds=rounds,
                target_ua=target_ua,
                metrics=metrics,
                encoding=encoding,
                insecure=insecure,
            )
            ignore_signals()
        _say_how_to_resume(summary, found)
        _end(summary, as_json)


@command(app, "runs", example="fedpatch runs --json")
def runs(
    state_dir: StateDir = None,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="First make the registry again from the runs' own files; keep the old one."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List all runs, the newest first."""
    from fedpatch.coordinator.cli.tables import print_runs

    if rebuild:
        _rebuild(state_dir)
    with _registry(state_dir) as registry:
        found = registry.runs()
    print_runs(found, as_json=as_json)


@command(app, "show", example="fedpatch show last")
def show(run: Run, state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Show a run, round by round; with --json what the run itself printed."""
    from fedpatch.coordinator.cli.tables import print_run
    from fedpatch.coordinator.rounds.run_records import summary_of

    with _registry(state_dir, run) as registry:
        info = registry.run(run)
        rounds = registry.records_as_written(info.id)
    if as_json:
        typer.echo(summary_of(info, rounds).to_json())
    else:
        print_run(info, rounds)


@command(app, "tasks", example="fedpatch tasks")
def tasks(as_json: AsJson = False) -> None:
    """List the installed tasks, also those that cannot be used, and why."""
    from fedpatch.coordinator.cli.tables import print_named
    from fedpatch.shared.tasks.task import BrokenTask, list_tasks

    rows = [
        {"name": one.name, "problem": one.problem}
        if isinstance(one, BrokenTask)
        else {"name": one.name, "description": one.description}
        for one in list_tasks()
    ]
    print_named(rows, as_json=as_json)


@command(app, "strategies", example="fedpatch strategies")
def strategies(as_json: AsJson = False) -> None:
    """List the strategies: what devices do, and how the server makes one model of it."""
    from fedpatch.coordinator.aggregation.strategies import STRATEGIES
    from fedpatch.coordinator.cli.tables import print_named

    print_named([{"name": name, "description": one.description} for name, one in STRATEGIES.items()], as_json=as_json)


def broker(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="Port to listen on; 0 takes a free one.")
    ] = 1883,
) -> None:
    """Run the built-in broker for this machine until Ctrl-C; for a fleet, use mosquitto."""
    if context.invoked_subcommand is not None:
        return
    from fedpatch.coordinator.demo.broker import EmbeddedBroker

    server = EmbeddedBroker(port=port)
    try:
        server.start()
    except BrokerError as error:
        raise UsageError(str(error)) from error  # here the port is what was asked for
    try:
        come: SimpleQueue[int] = SimpleQueue()
        with signals_told(come.put):
            say(f"listening on {server.url}, for this machine only; Ctrl-C ends it")
            number = come.get()
    finally:
        server.stop()
    raise typer.Exit(exit_code_of(number))


broker_app.callback()(with_debug(broker))


add_acl(broker_app)
add_check_task(app, NAME)
add_devices(app, lambda state_dir: _registry(state_dir))
for add in (add_identities, add_doctor, add_export, add_inventory, add_report, add_unit, add_watch):
    add(app)


def _view() -> RunView:
    from fedpatch.coordinator.observability.live_view import make_view

    return make_view(sys.stderr, plain=logging.getLogger("fedpatch").isEnabledFor(logging.DEBUG))


def _registry(state_dir: Path | None, run: str | None = None) -> Registry:
    """To read; says where it is when nobody could tell from the command line and the current directory."""
    from fedpatch.coordinator.storage.run_registry import LAST, REGISTRY_FILE, Registry
    from fedpatch.coordinator.storage.state_dirs import default, find, with_runs

    found = find(state_dir, run)
    if state_dir is None and run in (None, LAST) and found != default():
        others = [str(place) for place in with_runs() if place != found][:_SHOWN_PLACES]
        say(f"in {found}" + (f"; --state-dir names another, such as {', '.join(others)}" if others else ""))
    return Registry(found / REGISTRY_FILE, readonly=True)


def _rebuild(state_dir: Path | None) -> None:
    """`runs --rebuild`, and on stderr what came of it."""
    from fedpatch.coordinator.storage.registry_rebuild import rebuild_registry
    from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
    from fedpatch.coordinator.storage.state_dirs import find

    rebuilt = rebuild_registry(find(state_dir) / REGISTRY_FILE)
    for path in rebuilt.set_aside:
        say(f"set aside: {path}")
    for path in rebuilt.without_journal:
        say(f"left out: {path} has no journal that says what run it was; its checkpoints stay where they are")
    if rebuilt.source is None:
        say(
            "devices, quarantine and maintenance could not be read: hold back again whom you do not want (fedpatch devices)"
        )
    else:
        counts = f"{rebuilt.devices} devices and {rebuilt.holds} that are held back"
        say(f"taken over from {rebuilt.source.name}: {counts}")
    say(f"rebuilt with {len(rebuilt.runs)} runs; `fedpatch doctor` checks them")


def _say_how_to_resume(summary: RunSummary, state_dir: Path) -> None:
    if summary.stopped_because in _EXIT_CODES:
        say(f"to go on: fedpatch resume {summary.run} --state-dir {shlex.quote(str(state_dir))}")


def _end(summary: RunSummary, as_json: bool) -> NoReturn:
    from fedpatch.coordinator.cli.tables import print_summary

    if as_json:
        typer.echo(summary.to_json())
    else:
        print_summary(summary)
    raise typer.Exit(_EXIT_CODES.get(summary.stopped_because, 1 if summary.in_vain else 0))
