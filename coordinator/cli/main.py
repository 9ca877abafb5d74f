"""The command line `fedpatch`: run the coordinator and read its results.

stdout has results only (with `--json` one JSON document), stderr everything else. A command imports its packages when it is
called, so that help, `runs` and `show` start quickly. Further commands, such as `simulate`, are found as entry points.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedpatch.coordinator.cli.broker import add_acl
from fedpatch.coordinator.cli.check_task import add_check_task
from fedpatch.coordinator.cli.console import add_console
from fedpatch.coordinator.cli.devices import add_devices
from fedpatch.coordinator.cli.doctor import add_doctor
from fedpatch.coordinator.cli.enrol import add_identities
from fedpatch.coordinator.cli.export import add_export
from fedpatch.coordinator.cli.inventory import add_inventory
from fedpatch.coordinator.cli.metrics import add_metrics
from fedpatch.coordinator.cli.options import PasswordFile, StateDir, state_dir_to_read
from fedpatch.coordinator.cli.privacy import add_privacy
from fedpatch.coordinator.cli.report import add_report
from fedpatch.coordinator.cli.run_exit_code import EXIT_CODES, exit_code_of_run
from fedpatch.coordinator.cli.watch import add_watch
from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.command import AsJson, Group, command, make_app, say, with_debug
from fedpatch.shared.app.signals import exit_code_of, forward_signals, ignore_signals, interruptible
from fedpatch.shared.app.unit_command import add_unit
from fedpatch.shared.config.load import cli_options
from fedpatch.shared.config.secrets import pop_password
from fedpatch.shared.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from fedpatch.coordinator.api.client import Client
    from fedpatch.coordinator.observability.live_view import RunView
    from fedpatch.coordinator.observability.status_message import View
    from fedpatch.coordinator.rounds.run_summary import RunSummary

NAME = "fedpatch"

app = make_app(
    NAME,
    "Federated learning over MQTT for fleets of small devices, with a private patch on each of them.",
    panels={
        "Try it on this machine": ["demo", "simulate", "check-task", "tasks", "strategies"],
        "Train with a fleet": ["doctor", "privacy", "run", "stop", "resume"],
        "Look at runs and devices": [
            "console",
            "watch",
            "runs",
            "show",
            "evaluate",
            "report",
            "metrics",
            "devices",
            "export",
        ],
        "Set a fleet up": ["ca", "device", "broker", "inventory", "unit"],
    },
)
broker_app = typer.Typer(cls=Group, invoke_without_command=True)
app.add_typer(broker_app, name="broker", epilog="Example: fedpatch broker --port 1883")

Run = Annotated[str, typer.Argument(metavar="RUN", help="Run, by id, its beginning, or: last.")]


@command(app, "demo", example="fedpatch demo --devices 5 --target-ua 0.95 --out /tmp/demo")
@cli_options(DemoSettings)
def demo(
    settings: DemoSettings,
    console: Annotated[
        bool, typer.Option("--console", help="Show the run in a web console, which stays until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small fleet on this machine: broker, coordinator and one process for each device.

    --out receives runs (coordinator/), states and logs (devices/); a later demo there adds a run and replaces the
    devices. A directory with foreign files is refused. With --broker the fleet is demo. FEDPATCH_AGENT_ variables
    have no effect.
    """
    from fedpatch.coordinator.demo.demo import FLEET, run_demo
    from fedpatch.coordinator.storage.state_dirs import DEMO_SUBDIRECTORY

    place = settings.out.expanduser().absolute() / DEMO_SUBDIRECTORY
    with interruptible(), ExitStack() as stack:
        with _view() as view:
            shown = _console(stack, view, "127.0.0.1:0" if console else None, place, FLEET, settings.task)
            done = run_demo(settings, shown)
        say(
            f"patches: {done.devices_dir}/*/patches",
            f"logs: {done.devices_dir}/*.log",
            f"rounds: fedpatch show {done.summary.run} --state-dir {shlex.quote(str(done.state_dir))}",
            *_report_line(done.summary.run, done.state_dir),
        )
        try:
            _end(done.summary, as_json)
        finally:
            if console and done.summary.stopped_because != "interrupted":
                _stay()


@command(app, "run", example="fedpatch run --broker mqtts://broker.local --task digits --devices 4 --target-ua 0.97")
@cli_options(RunSettings)
def run(
    settings: RunSettings,
    new: Annotated[bool, typer.Option("--new", help="Begin a new run in any case.")] = False,
    unless_done: Annotated[
        bool,
        typer.Option(
            "--unless-done",
            help="Only print the last run if it ended and had the same settings.",
        ),
    ] = False,
    keep_metrics: Annotated[
        bool,
        typer.Option("--keep-metrics", help="After a finished run, serve its last metrics until a signal."),
    ] = False,
    console: Annotated[
        str | None,
        typer.Option("--console", metavar="HOST:PORT", help="Show the run in a web console on this machine."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train with the devices of a fleet until --target-ua, --rounds or --time-limit-s is reached.

    The fleet's last run in --state-dir is resumed if it was interrupted and had the same settings. It continues with the
    new values of these settings, which may differ: connection, paths (not --blobs), --encoding, --chunk-kib, --norm-bound,
    --devices, --wait-s, --deadline-s, --independent-every, --evaluate-every, --evaluate-participation, --standby, --metrics,
    --metrics-max-devices, --traces, --tracker, --models-store, --models-url.
    """
    from fedpatch.coordinator.runtime.run_or_resume import run_or_resume

    with interruptible():
        with _view() as view, ExitStack() as stack:
            shown = _console(stack, view, console, settings.state_dir.absolute(), settings.fleet, settings.task)
            summary = run_or_resume(settings, shown, new=new, unless_done=unless_done)
            ignore_signals()
        if not settings.standby:
            _print_resume_command(summary, settings.state_dir)
        code = _print_end(summary, as_json)
    if keep_metrics and code == 0:
        _keep_metrics(settings, summary.run)
    raise typer.Exit(code)


@command(app, "resume", example="fedpatch resume last --rounds 60")
def resume(
    run: Run = "last",
    state_dir: StateDir = None,
    broker: Annotated[str | None, typer.Option(metavar="URL", help="Broker instead of the run's.")] = None,
    password_file: PasswordFile = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Total number of rounds instead of the run's.")] = None,
    target_ua: Annotated[float | None, typer.Option(help="Target user accuracy instead of the run's.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for metrics instead of the run's.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(metavar="NAME", help="Encoding from the next round on.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow mqtt:// to another machine, without TLS.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run with its settings.

    Committed updates of the open round count; other devices are asked again. After Ctrl-C the round keeps its
    remaining time; after a crash its deadline has gone on. The run waits wait_s for its devices (300 s more while
    devices start), then goes on with those present. time_limit_s starts again. last is searched in --state-dir or
    ./fedpatch-state only.
    """
    from fedpatch.coordinator.runtime.resume_run import resume_run
    from fedpatch.coordinator.storage.database.opening import must_exist
    from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
    from fedpatch.coordinator.storage.state_dirs import find_to_resume

    found = find_to_resume(state_dir, run)
    must_exist(found / REGISTRY_FILE)  # raises before a registry is created
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
        _print_resume_command(summary, found)
        _end(summary, as_json)


@command(app, "evaluate", example="fedpatch evaluate last --participation 0.5")
def evaluate(
    run: Run = "last",
    state_dir: StateDir = None,
    broker: Annotated[str | None, typer.Option(metavar="URL", help="Broker instead of the run's.")] = None,
    password_file: PasswordFile = None,
    participation: Annotated[
        float, typer.Option(min=0.001, max=1.0, metavar="SHARE", help="Share of the fleet that is asked.")
    ] = 1.0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow mqtt:// to another machine, without TLS.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a run's model on all its devices, without training: mean, 10th percentile, minimum, number of devices.

    Each device uses its patch and its own test data; in a run with finish it trains its personal model first. The
    round is added to the run, whose status stays. Exit code 1: no device answered; 2: the run has secure = groups or
    dp.
    """
    from fedpatch.coordinator.cli.tables import print_evaluation
    from fedpatch.coordinator.runtime.evaluate_run import evaluate_run
    from fedpatch.coordinator.storage.database.opening import must_exist
    from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
    from fedpatch.coordinator.storage.state_dirs import find_to_resume

    found = find_to_resume(state_dir, run)
    must_exist(found / REGISTRY_FILE)  # raises before a registry is created
    password = None if password_file else pop_password(os.environ)
    with interruptible(), _view() as view:
        record = evaluate_run(
            found,
            run,
            view,
            broker=broker,
            password=password,
            password_file=password_file,
            participation=participation,
            insecure=insecure,
        )
    print_evaluation(record, as_json=as_json)
    if not record.measured:
        raise typer.Exit(1)


@command(app, "stop", example="fedpatch stop last")
def stop(run: Run = "last", state_dir: StateDir = None) -> None:
    """Stop a run after its open round, or at once between rounds; `fedpatch resume` goes on with it.

    The coordinator sees the request within two seconds and ends as after Ctrl-C (exit code 130), but no device is
    interrupted. Exit code 2: no coordinator is at work on the run in this state directory.
    """
    say(_client(state_dir, run).stop(run))


@command(app, "runs", example="fedpatch runs --json")
def runs(
    state_dir: StateDir = None,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="First rebuild the registry from the runs' files."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List all runs, the newest first; on stderr the leader of each fleet with standbys.

    --rebuild replaces a damaged or lost registry and its copy, keeps the old one as NAME.damaged, and lists recovered
    devices and holds on stderr. Exit code 2: the coordinator runs.
    """
    from fedpatch.coordinator.cli.tables import print_runs

    if rebuild:
        _rebuild(state_dir)
    client = _client(state_dir)
    listed = client.runs()
    print_runs(listed, as_json=as_json)
    _say_leaders(client.state_dir(), {str(one.settings.get("fleet")) for one in listed})


@command(app, "show", example="fedpatch show last")
def show(run: Run = "last", state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Show a run round by round: participants, user accuracy before and after training, time, bytes, absences.

    The JSON has the form of `fedpatch run`; while the run goes on, stopped_because is running.
    """
    from fedpatch.coordinator.cli.tables import print_run

    client = _client(state_dir, run)
    shown = client.show(run)
    if as_json:
        typer.echo(shown.to_json())
    else:
        print_run(client.run_info(shown.run), shown.rounds)


@command(app, "tasks", example="fedpatch tasks")
def tasks(as_json: AsJson = False) -> None:
    """List the installed tasks, and why one cannot be used."""
    from fedpatch.coordinator.cli.tables import print_named
    from fedpatch.shared.tasks.task import TASKS

    print_named(_described(TASKS.installed()), as_json=as_json)


@command(app, "strategies", example="fedpatch strategies")
def strategies(as_json: AsJson = False) -> None:
    """List the federated algorithms, with the work of devices and server in each."""
    from fedpatch.coordinator.cli.tables import print_named
    from fedpatch.coordinator.find_strategy import STRATEGIES

    print_named(_described(STRATEGIES.installed()), as_json=as_json)


def _described(installed: Iterable[Any]) -> list[dict[str, str]]:
    """Return a row for each installed task or strategy: its name, and its description or problem."""
    from fedpatch.shared.app.named_plugins import BrokenPlugin

    return [
        {"name": one.name, "problem": one.problem}
        if isinstance(one, BrokenPlugin)
        else {"name": one.name, "description": one.description}
        for one in installed
    ]


def broker(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="Port to listen on; 0 takes a free one.")
    ] = 1883,
) -> None:
    """Run the built-in broker for this machine, without passwords, until Ctrl-C. A fleet needs mosquitto."""
    if context.invoked_subcommand is not None:
        return
    from fedpatch.coordinator.demo.broker import EmbeddedBroker

    server = EmbeddedBroker(port=port)
    try:
        server.start()
    except BrokerError as error:
        raise UsageError(str(error)) from error  # here the port is the user's option
    try:
        come: SimpleQueue[int] = SimpleQueue()
        with forward_signals(come.put):
            say(f"listening on {server.url}, for this machine only; Ctrl-C ends it")
            number = come.get()
    finally:
        server.stop()
    raise typer.Exit(exit_code_of(number))


broker_app.callback()(with_debug(broker))


add_acl(broker_app)
add_check_task(app, NAME)
add_unit(
    app,
    NAME,
    "coordinator",
    """Print the systemd unit that runs this installation's coordinator as a confined service.

    It calls `fedpatch run --unless-done --keep-metrics`: a boot resumes an interrupted run and leaves a finished one
    alone, whose last metrics it serves. Secrets such as FEDPATCH_PASSWORD=... are in a file beside the settings that
    ends in .env.
    """,
)
add_devices(app)
for add in (
    *(add_console, add_identities, add_doctor, add_export, add_inventory),
    *(add_metrics, add_privacy, add_report, add_watch),
):
    add(app)


def _view() -> RunView:
    from fedpatch.coordinator.observability.live_view import make_view

    return make_view(sys.stderr, plain=logging.getLogger("fedpatch").isEnabledFor(logging.DEBUG))


def _console(stack: ExitStack, view: View, listen: str | None, state_dir: Path, fleet: str, task: str) -> View:
    """Start a console if one is asked for; it ends with `stack`. Return the view for the run."""
    if listen is None:
        return view
    from fedpatch.coordinator.console.beside import console_beside, local_address

    return stack.enter_context(console_beside(view, local_address(listen), state_dir, fleet, task))


def _report_line(run: str, state_dir: Path) -> list[str]:
    """Write the report of a demo beside its runs; return a line with its address, or with the reason why there is none."""
    from fedpatch.shared.errors import FedpatchError

    page = state_dir.parent / "report.html"
    try:
        from fedpatch.coordinator.report.load import Wanted, read_runs, write_report

        write_report(read_runs(state_dir, [run]), Wanted(page))
    except (ModuleNotFoundError, FedpatchError) as error:
        return [f"report: none ({error})"]
    return [f"report: {page.as_uri()}"]


def _stay() -> None:
    """Wait for Ctrl-C, with the console of the demo."""
    come: SimpleQueue[int] = SimpleQueue()
    with forward_signals(come.put):
        say("the console stays; Ctrl-C ends it")
        come.get()


def _client(state_dir: Path | None, run: str | None = None) -> Client:
    from fedpatch.coordinator.api.client import Client

    return Client(state_dir_to_read(state_dir, run))


def _say_leaders(state_dir: Path, fleets: Iterable[str]) -> None:
    """Print the leader of each fleet whose coordinators have standbys; only a registry in a database has leaders."""
    from fedpatch.coordinator.storage.database.opening import url_of
    from fedpatch.coordinator.storage.leadership import leader_in_words
    from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE

    if (url := url_of(state_dir / REGISTRY_FILE)) is not None:
        say(*filter(None, (leader_in_words(url, fleet) for fleet in sorted(fleets))))


def _rebuild(state_dir: Path | None) -> None:
    """Rebuild the registry from the files of the runs; print the result on stderr."""
    from fedpatch.coordinator.api.client import Client

    rebuilt = Client(state_dir).rebuild()
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


def _print_resume_command(summary: RunSummary, state_dir: Path) -> None:
    if summary.stopped_because in EXIT_CODES:
        say(f"to go on: fedpatch resume {summary.run} --state-dir {shlex.quote(str(state_dir))}")


def _keep_metrics(settings: RunSettings, run: str) -> None:
    """Become the process that serves the last metrics of the run; return if it could not serve them."""
    from fedpatch.coordinator.observability.ended_run import become, keeper

    if keeps := keeper(settings.metrics, run, settings.state_dir):
        become(keeps)


def _end(summary: RunSummary, as_json: bool) -> NoReturn:
    raise typer.Exit(_print_end(summary, as_json))


def _print_end(summary: RunSummary, as_json: bool) -> int:
    """Print the result of a run, and return the exit code."""
    from fedpatch.coordinator.cli.tables import print_summary

    if as_json:
        typer.echo(summary.to_json())
    else:
        print_summary(summary)
    return exit_code_of_run(summary)
