"""Start of an agent from its settings, and its end by a signal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from fedpatch.device_agent.models.store import MODELS_DIRECTORY
from fedpatch.device_agent.runtime.agent_composition import Ports, make_agent
from fedpatch.device_agent.runtime.agent_events import EventQueue, Reload, Stop
from fedpatch.device_agent.runtime.begun_anew import loss_in_words, may_be_lost
from fedpatch.device_agent.runtime.name_check import NameChecked, ask_in_thread
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.runtime.training_launch import launch_through
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.machine import clone_problem, note_machine
from fedpatch.device_agent.state.status_file import (
    former_boots,
    host_as_device_id,
    lock_state_dir,
)
from fedpatch.device_agent.state.storage_check import PATCHES
from fedpatch.shared.app.file_systems import passing_mounts
from fedpatch.shared.app.signals import exit_code_of, forward_signals
from fedpatch.shared.config.load import Source
from fedpatch.shared.errors import StateError
from fedpatch.shared.mqtt.broker_settings import exposure
from fedpatch.shared.mqtt.certificate_holder import check_holder
from fedpatch.shared.mqtt.url import parse_broker_url

log = logging.getLogger("fedpatch.agent")


def run_agent(
    settings: AgentSettings,
    *,
    until_stdin_closes: bool = False,
    root: Path = Path("/"),
    fork_server: Path | None = None,
    source: Source[AgentSettings] | None = None,
) -> int:
    """Run one device's agent until SIGTERM (exit code 0) or SIGINT (130).

    Args:
        settings: Checked settings.
        until_stdin_closes: Whether the agent also ends when its standard input does.
        root: Root of the file system in which facts about the device are read.
        fork_server: Unix socket of a server that forks training processes; None starts each as a program.
        source: Places of the settings, which SIGHUP reads again.

    Raises:
        FedpatchError: The agent cannot start; the class gives the exit code.
    """
    identity = Identity.new(settings.fleet, settings.device_id or host_as_device_id())
    check_holder(settings.tls_files, identity.fleet, "device", identity.device)
    queue: EventQueue = SimpleQueue()
    trainer = partial(Trainer, launch=launch_through(fork_server))
    directory = settings.state_dir.absolute()
    if warning := exposure(parse_broker_url(settings.broker)):
        log.warning(warning)
    with lock_state_dir(directory):
        boots = former_boots(directory)
        answer = _warning_of_lost_state(directory, identity.device, boots, queue.put)
        ports = Ports(
            trainer=trainer,
            manager=ServiceManager.from_environment(),
            root=root,
            ask_for_name=partial(ask_in_thread, settings, identity, boots, answer),
        )
        _watch_over_state(directory, root)
        agent = make_agent(settings, identity, queue, ports, source)
        if until_stdin_closes:
            stop_at_end_of_stdin(queue)
        with forward_signals(lambda number: queue.put(_event_of(number)), also=(signal.SIGHUP,)):
            return agent.run()


def _watch_over_state(directory: Path, root: Path) -> None:
    """Warn about a state directory that a reboot deletes or that another machine began, and note this machine in a new one."""
    for passing in passing_mounts(directory, (PATCHES, MODELS_DIRECTORY)):
        lost = "what is there then begins" if passing.part else "daily limits, patch and privacy account then begin"
        log.warning("%s: %s anew; %s", passing.problem, lost, passing.remedy)
    try:
        if found := clone_problem(directory, root):
            log.warning("%s; %s", *found)
        note_machine(directory, root)
    except StateError as error:  # an agent whose disk refuses runs, and declines
        log.warning("%s", error)


def _warning_of_lost_state(
    directory: Path, device: str, boots: Collection[str], put: Callable[[NameChecked], None]
) -> Callable[[NameChecked], None]:
    """Return a function that passes the answer about a device's name on, and warns if the last start had other state.

    Args:
        directory: The state directory, before the agent writes to it.
        boots: Nonces of the starts in the directory.
    """
    if not may_be_lost(directory, boots):
        return put

    def pass_on(checked: NameChecked) -> None:
        if checked.is_foreign:
            log.warning("%s; %s", *loss_in_words(device, directory))
        put(checked)

    return pass_on


def _event_of(number: int) -> Stop | Reload:
    """Return the event of a signal."""
    if number == signal.SIGHUP:
        return Reload()
    return Stop(exit_code_of(number), signal.Signals(number).name)


def stop_at_end_of_stdin(queue: EventQueue) -> None:
    """Put a Stop into the queue at the end of standard input, from a thread of its own."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        queue.put(Stop(0))

    threading.Thread(target=wait, daemon=True).start()
