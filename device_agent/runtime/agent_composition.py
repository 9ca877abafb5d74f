"""An agent's parts, made from its settings and put together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import WorkerSetup
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.policy.admission_mode import parse_admission_mode
from fedpatch.device_agent.policy.local_time import local_now
from fedpatch.device_agent.policy.own_load import OwnLoadAverage
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy
from fedpatch.device_agent.policy.privacy_budget import PrivacyBudget
from fedpatch.device_agent.policy.secure_limits import REQUIRED, SecureLimits
from fedpatch.device_agent.policy.unmet_preferences import Preferences
from fedpatch.device_agent.policy.usage import UsageFile
from fedpatch.device_agent.runtime.agent import Agent
from fedpatch.device_agent.runtime.agent_events import EventQueue
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.idle_release import IdleTimer
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.device_agent.runtime.model_fetcher import ModelFetcher
from fedpatch.device_agent.runtime.presence import AgentLink, Identity, Presence
from fedpatch.device_agent.runtime.settings_in_force import SettingsInForce
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.runtime.training_supervisor import Trainer, TrainerEvent
from fedpatch.device_agent.sensors.collect import FactCollector
from fedpatch.device_agent.sensors.fact_watcher import FactWatcher
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.history import DeviceHistory
from fedpatch.device_agent.state.leader_epoch import LeaderEpoch
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.pause_file import is_paused
from fedpatch.device_agent.state.status_file import (
    MAX_BOOTS,
    StatusFile,
    former_boots,
)
from fedpatch.device_agent.state.storage_check import PATCHES, Storage
from fedpatch.device_agent.telemetry.local_metrics import LocalMetrics
from fedpatch.device_agent.telemetry.vitals import VitalsPace
from fedpatch.shared import __version__
from fedpatch.shared.config.load import Source
from fedpatch.shared.mqtt.broker_settings import link_options
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.wire.masking_messages import ThresholdRule

# Two agents that disconnect each other from the broker, each after the longest pause, see each other every second pause.
_FORGET_AFTER_PAUSES = 3.0


@dataclass(frozen=True)
class Ports:
    """Connections of an agent to its environment; tests and simulated worlds give others.

    Attributes:
        clock: Returns monotonic seconds.
        link: Makes the connection to the broker; takes the arguments of MqttLink.
        trainer: Makes the training process from its setup and the function that takes its events.
        manager: Connection to systemd.
        root: Root of the file system in which facts about the device are read.
        ask_for_name: Begins to find out whether another agent is online under this name; None to connect at once.
    """

    clock: Callable[[], float] = time.monotonic
    link: Callable[..., AgentLink] = MqttLink
    trainer: Callable[[WorkerSetup, Callable[[TrainerEvent], None]], Trainer] = Trainer
    manager: ServiceManager = field(default_factory=ServiceManager)
    root: Path = Path("/")
    ask_for_name: Callable[[], None] | None = None


def make_agent(
    settings: AgentSettings,
    identity: Identity,
    queue: EventQueue,
    ports: Ports,
    source: Source[AgentSettings] | None = None,
) -> Agent:
    """Build an agent from its settings.

    Args:
        settings: Checked settings; their state directory is locked by the caller.
        ports: Clock, link, training process and systemd.
        source: Places of the settings; None where they cannot be read again.
    """
    directory = settings.state_dir.absolute()
    link = ports.link(
        settings.broker,
        client_id=identity.client_id,
        events=queue.put,
        will=identity.will(),
        **link_options(settings),
        reconnect_delay_s=(settings.reconnect_min_s, settings.reconnect_max_s),
    )
    models = None
    if settings.keep_models:
        models = ModelStore(directory / MODELS_DIRECTORY, settings.keep_models, every_s=settings.model_every_s)
    trainer = ports.trainer(setup_of(settings, directory, identity.device), queue.put)
    boots = (*former_boots(directory), identity.boot)[-MAX_BOOTS:]
    owner = _make_owner(settings, directory, queue, trainer, ports.root)
    certificates = CertificateFiles.of(settings.tls_files, identity.device, identity.fleet, directory)
    secure = _secure_limits(settings, signs=certificates is not None)
    limits = _make_limits(settings, directory, secure)
    runner = EffectRunner(
        identity,
        link=link,
        trainer=trainer,
        usage=owner.meter,
        limits=limits,
        directory=directory,
        models=models,
        fetcher=ModelFetcher.of(settings, settings.models_ca_file, queue.put) if settings.models_by_url else None,
        history=DeviceHistory(directory, settings.broker),
        shares_reasons=settings.share_reasons,
        clock=ports.clock,
    )
    metrics = None
    if settings.tells_metrics:
        metrics = LocalMetrics(settings, identity.device, owner, runner.times, models)
    masking = _make_masking(identity.device, directory, certificates) if secure.offers else None
    return Agent(
        identity,
        _make_job(settings, masking),
        runner,
        queue=queue,
        link=link,
        trainer=trainer,
        owner=owner,
        limits=limits,
        storage=Storage(directory),
        presence=_make_presence(settings, identity, link, boots, secure),
        housekeeping=Housekeeping(trainer, IdleTimer(settings.idle_release_s), ports.manager, metrics=metrics),
        status=StatusFile(directory, _fixed_status(settings, identity, boots)),
        leader=LeaderEpoch(directory, identity.fleet),
        settings=SettingsInForce(settings, source),
        ask_for_name=ports.ask_for_name,
        clock=ports.clock,
    )


def _make_job(settings: AgentSettings, masking: MaskingRounds | None) -> Job:
    asks = parse_admission_mode(settings.admission).follows_preferences
    return Job(max_blob_bytes=settings.max_model_mib * 2**20, ask_to_send=asks, masking=masking)


def _make_masking(device: str, directory: Path, certificates: CertificateFiles | None) -> MaskingRounds:
    restored, offered = MaskingFile(directory).load(), OfferedBases(directory).load()
    return MaskingRounds(device, os.urandom, restored, certificates, offered)


def _secure_limits(settings: AgentSettings, *, signs: bool) -> SecureLimits:
    return SecureLimits(
        settings.secure,
        settings.min_group,
        settings.clip,
        ThresholdRule(settings.least_threshold),
        signs=signs,
        min_colluders=settings.min_colluders,
        max_weight_cap=settings.weight_limit,
    )


def _make_limits(settings: AgentSettings, directory: Path, secure: SecureLimits) -> OwnerLimits:
    return OwnerLimits(
        directory / PATCHES,
        private=settings.private,
        max_steps=settings.max_steps,
        max_epochs=settings.max_epochs,
        privacy=privacy_of(settings, directory),
        secure=secure,
        never=settings.admission == "never",
    )


def _make_presence(
    settings: AgentSettings, identity: Identity, link: AgentLink, boots: tuple[str, ...], secure: SecureLimits
) -> Presence:
    return Presence(
        identity,
        link,
        DuplicateIdDetector(identity.boot, _FORGET_AFTER_PAUSES * settings.reconnect_max_s, former_boots=boots),
        VitalsPace() if settings.share_vitals else None,
        masks=secure.offers,
        signs=secure.signs,
        hides_examples=secure.forbids_unmasked,
        fetches=settings.models_by_url,
        shares_reasons=settings.share_reasons,
    )


def _fixed_status(settings: AgentSettings, identity: Identity, boots: tuple[str, ...]) -> dict[str, Any]:
    """Return the part of status.json that stays while the agent runs."""
    return {
        "device_id": identity.device,
        "fleet": identity.fleet,
        "broker": settings.broker,
        "version": __version__,
        "admission": _admission_for_others(settings.admission),
        "boots": boots,
    }


def _admission_for_others(admission: str) -> str:
    """Return the admission mode for status.json, with the absolute path of its file: readers may have another directory."""
    order = parse_admission_mode(admission)
    return f"file:{Path(order.path).absolute()}" if order.path else admission


def setup_of(settings: AgentSettings, directory: Path, device: str) -> WorkerSetup:
    """Return the first command of the training process.

    Args:
        settings: Checked settings.
        directory: State directory of the device.
    """
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
        models_dir=str(directory / MODELS_DIRECTORY) if settings.keep_models else "",
        keep_margin=settings.keep_margin,
        held_dir=str(directory / HELD_DIRECTORY),
        private=settings.private,
        max_steps=settings.max_steps,
        max_epochs=settings.max_epochs,
        alone_every=settings.alone_every if settings.keep_models else 0,
        require_filter=settings.secure == REQUIRED,
        hides_examples=settings.secure == REQUIRED,
    )


def _make_owner(
    settings: AgentSettings, directory: Path, queue: EventQueue, trainer: Trainer, root: Path
) -> OwnerPolicy:
    return OwnerPolicy(
        parse_admission_mode(settings.admission),
        Preferences.of(settings),
        usage=UsageFile(directory),
        watcher=FactWatcher(observer_of(settings, directory, root), queue.put),
        local_now=local_now,
        own_memory_mib=trainer.resident_mib,
        own_load=OwnLoadAverage(settings.threads, os.cpu_count() or 1),
        look_anyway=settings.share_vitals or settings.tells_metrics,
        is_paused=partial(is_paused, directory),
    )


def privacy_of(settings: AgentSettings, directory: Path) -> PrivacyBudget:
    """Return the owner's limit of privacy loss.

    Args:
        settings: Checked settings.
        directory: State directory of the device, with the account.
    """
    return PrivacyBudget(
        directory,
        fleet=settings.fleet,
        max_epsilon=settings.epsilon_limit,
        required=settings.dp_required,
        delta=settings.dp_delta,
    )


def observer_of(settings: AgentSettings, directory: Path, root: Path = Path("/")) -> FactCollector:
    """Collector of facts about this device.

    Args:
        settings: Checked settings.
        directory: State directory of the device.
        root: Root of the file system to read facts in.
    """
    host = parse_broker_url(settings.broker).host
    return FactCollector(broker_host=host, state_dir=directory, root=root, ups=settings.ups)
