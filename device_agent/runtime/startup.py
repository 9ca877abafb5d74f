"""From settings to an agent that runs, and how it is told to end."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import WorkerSetup
from fedpatch.device_agent.models.store import DIRECTORY, ModelStore
from fedpatch.device_agent.policy.admission_mode import parse_admission_mode
from fedpatch.device_agent.policy.job_usage import OwnLoadAverage, resident_mib
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy
from fedpatch.device_agent.policy.preference_check import Preferences
from fedpatch.device_agent.policy.quiet_hours import local_now
from fedpatch.device_agent.policy.usage_file import UsageLedger
from fedpatch.device_agent.runtime.agent import Agent, Inbox, Stop
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.runtime.effect_runner import EffectRunner, Identity
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.idle_timeout import IdleTimer
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.sensors.collect import FactCollector, FactWatcher
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.model_cache import DIRECTORY as HELD_DIRECTORY
from fedpatch.device_agent.state.status_file import (
    MAX_BOOTS,
    StatusFile,
    former_boots,
    host_as_device_id,
    lock_state_dir,
)
from fedpatch.device_agent.state.storage_check import PATCHES
from fedpatch.device_agent.telemetry.local_metrics import LocalMetrics
from fedpatch.device_agent.telemetry.vitals import VitalsPace
from fedpatch.shared import __version__
from fedpatch.shared.app.signals import exit_code_of, signals_told
from fedpatch.shared.diagnostics.own_certificate import check_holder
from fedpatch.shared.mqtt.broker_settings import exposure, password_of
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.url import parse_broker_url

# Two agents that push each other off the broker, each after the longest pause, hear of each other every other pause.
_FORGET_AFTER_PAUSES = 3.0

log = logging.getLogger("fedpatch.agent")


def run_agent(settings: AgentSettings, *, until_stdin_closes: bool = False, root: Path = Path("/")) -> int:
    """Runs one device's agent until SIGTERM (exit code 0) or SIGINT (130); raises FedpatchErrors before it is at work.

    With `until_stdin_closes` it also ends with whoever started it. `root` is where the device's conditions are read.
    """
    identity = Identity.new(settings.fleet, settings.device_id or host_as_device_id())
    check_holder(settings.tls_files, identity.fleet, "device", identity.device)
    directory = settings.state_dir.absolute()
    inbox: Inbox = SimpleQueue()
    manager = ServiceManager.from_environment()
    if warning := exposure(parse_broker_url(settings.broker)):
        log.warning(warning)
    with lock_state_dir(directory):
        agent = _make_agent(settings, identity, directory, inbox, manager, root)
        if until_stdin_closes:
            threading.Thread(target=_stop_at_end_of_stdin, args=(inbox,), daemon=True).start()
        with signals_told(lambda number: inbox.put(Stop(exit_code_of(number)))):
            return agent.run()


def _make_agent(
    settings: AgentSettings, identity: Identity, directory: Path, inbox: Inbox, manager: ServiceManager, root: Path
) -> Agent:
    link = MqttLink(
        settings.broker,
        client_id=identity.client_id,
        events=inbox.put,
        will=identity.will(),
        username=settings.username,
        password=password_of(settings),
        tls=settings.tls_files,
        reconnect_delay_s=(settings.reconnect_min_s, settings.reconnect_max_s),
    )
    models = ModelStore(directory / DIRECTORY, settings.keep_models) if settings.keep_models else None
    trainer = Trainer(setup_of(settings, directory, identity.device), inbox.put)
    order = parse_admission_mode(settings.admission)
    job = Job(max_blob_bytes=settings.max_model_mib * 2**20, ask_to_send=order.follows_preferences)
    boots = (*former_boots(directory), identity.boot)[-MAX_BOOTS:]
    fixed = {
        "device_id": identity.device,
        "fleet": identity.fleet,
        "broker": settings.broker,
        "version": __version__,
        "admission": settings.admission,
        "boots": boots,
    }
    owner = _make_owner(settings, directory, inbox, trainer, root)
    patch_dir = directory / PATCHES
    limits = OwnerLimits(
        patch_dir, private=settings.private, max_steps=settings.max_steps, max_epochs=settings.max_epochs
    )
    performer = EffectRunner(
        identity,
        job,
        link=link,
        trainer=trainer,
        meter=owner.meter,
        limits=limits,
        directory=directory,
        models=models,
    )
    metrics = None
    if settings.tells_metrics:
        metrics = LocalMetrics(settings, identity.device, owner, performer.times, models)
    vitals = VitalsPace() if settings.share_vitals else None
    return Agent(
        performer,
        link=link,
        inbox=inbox,
        trainer=trainer,
        owner=owner,
        status=StatusFile(directory, fixed),
        namesake=DuplicateIdDetector(
            identity.boot, _FORGET_AFTER_PAUSES * settings.reconnect_max_s, former_boots=boots
        ),
        upkeep=Housekeeping(trainer, IdleTimer(settings.idle_release_s), manager, metrics=metrics, vitals=vitals),
    )


def setup_of(settings: AgentSettings, directory: Path, device: str) -> WorkerSetup:
    """What the training process is told of a device whose state is in `directory`."""
    from fedpatch.shared.tasks.task import data_root

    return WorkerSetup(
        task_ref=settings.task,
        data=settings.data,
        data_root=str((settings.data_root or data_root()).absolute()),
        patch_dir=str(directory / PATCHES),
        device_id=device,
        threads=settings.threads,
        nice=settings.nice,
        max_memory_mib=settings.max_memory_mib,
        models_dir=str(directory / DIRECTORY) if settings.keep_models else "",
        keep_margin=settings.keep_margin,
        held_dir=str(directory / HELD_DIRECTORY),
        private=settings.private,
        max_steps=settings.max_steps,
        max_epochs=settings.max_epochs,
    )


def _make_owner(settings: AgentSettings, directory: Path, inbox: Inbox, trainer: Trainer, root: Path) -> OwnerPolicy:
    return OwnerPolicy(
        parse_admission_mode(settings.admission),
        Preferences.of(settings),
        usage=UsageLedger(directory),
        watcher=FactWatcher(observer_of(settings, directory, root), inbox.put),
        local_now=local_now,
        own_memory_mib=lambda: resident_mib(trainer.pid),
        own_load=OwnLoadAverage(settings.threads, os.cpu_count() or 1),
        look_anyway=settings.share_vitals or settings.tells_metrics,
    )


def observer_of(settings: AgentSettings, directory: Path, root: Path = Path("/")) -> FactCollector:
    """What looks at the conditions of this device, whose state is in `directory`."""
    host = parse_broker_url(settings.broker).host
    return FactCollector(broker_host=host, state_dir=directory, root=root, ups=settings.ups)


def _stop_at_end_of_stdin(inbox: Inbox) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    inbox.put(Stop(0))
