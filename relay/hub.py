"""The relay as a device of its hub: an agent whose training is a round of the site."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.runtime.agent import Agent
from fedpatch.device_agent.runtime.agent_events import EventQueue, Stop
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.idle_release import IdleTimer
from fedpatch.device_agent.runtime.model_fetcher import ModelFetcher
from fedpatch.device_agent.runtime.presence import Identity, Presence
from fedpatch.device_agent.runtime.startup import stop_at_end_of_stdin
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.state.leader_epoch import LeaderEpoch
from fedpatch.device_agent.state.status_file import MAX_BOOTS, StatusFile, former_boots, lock_state_dir
from fedpatch.device_agent.state.storage_check import Storage
from fedpatch.relay.relay_owner import RelayOwner
from fedpatch.relay.request_refusal import RelayLimits
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site import Site
from fedpatch.relay.site_round import SiteModel
from fedpatch.relay.site_trainer import SiteTrainer
from fedpatch.shared import __version__
from fedpatch.shared.app.signals import exit_code_of, forward_signals
from fedpatch.shared.mqtt.broker_settings import exposure, link_options
from fedpatch.shared.mqtt.certificate_holder import check_holder
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.wire.features import CARRY_FEATURE, EVALUATE_FEATURE, SUMS_FEATURE
from fedpatch.shared.wire.plan_terms import PLAN_TERMS

FEATURES: tuple[str, ...] = (CARRY_FEATURE, *PLAN_TERMS, SUMS_FEATURE)
"""Features of requests that a relay accepts, besides EVALUATE_FEATURE. Devices of its site also need the plan's features."""
ENCODINGS = ("fp32+zstd", "fp16+zstd", "fp32", "fp16")
"""Encodings of a relay: those of whole models."""
_RECONNECT_S = (1.0, 60.0)
_FORGET_AFTER_PAUSES = 3.0

_log = logging.getLogger("fedpatch.relay")


def run_relay(settings: RelaySettings, *, until_stdin_closes: bool = False) -> int:
    """Run the relay of one site until SIGTERM (exit code 0) or SIGINT (130).

    Args:
        settings: Checked settings.
        until_stdin_closes: Whether the relay also ends when its standard input does.

    Returns:
        The exit code.

    Raises:
        BrokerError: The site's broker does not answer.
        UsageError: Another relay or coordinator is running, or the task is unknown.
        StateError: The state directory cannot be used.
    """
    identity = Identity.new(settings.up_fleet, settings.device_id)
    upwards = settings.upwards
    check_holder(upwards.tls_files, identity.fleet, "device", identity.device)
    if warning := exposure(parse_broker_url(upwards.broker)):
        _log.warning(warning)
    queue: EventQueue = SimpleQueue()
    with ExitStack() as stack:
        stack.enter_context(lock_state_dir(settings.device_dir))
        model = SiteModel.load(settings.task)
        site = stack.enter_context(Site(settings, model, queue.put, lambda: queue.put(Stop(1))))
        agent = make_relay(settings, identity, queue, site)
        if until_stdin_closes:
            stop_at_end_of_stdin(queue)
        with forward_signals(lambda number: queue.put(Stop(exit_code_of(number)))):
            return agent.run()


def make_relay(
    settings: RelaySettings,
    identity: Identity,
    queue: EventQueue,
    site: Site,
    *,
    link: Callable[..., Any] = MqttLink,
) -> Agent:
    """Build the agent of a relay.

    Args:
        settings: Checked settings; their state directory is locked by the caller.
        site: The site, whose rounds take the place of training.
        link: Makes the connection to the hub's broker; takes the arguments of MqttLink.
    """
    directory, upwards = settings.device_dir, settings.upwards
    up = link(
        upwards.broker,
        client_id=identity.client_id,
        events=queue.put,
        will=identity.will(),
        **link_options(upwards),
        reconnect_delay_s=_RECONNECT_S,
    )
    job = Job(max_blob_bytes=settings.max_model_mib * 2**20, sums=True)
    trainer = SiteTrainer(site, job, queue.put)
    owner, limits = RelayOwner(directory, site), RelayLimits(settings, site)
    boots = (*former_boots(directory), identity.boot)[-MAX_BOOTS:]
    fixed = {
        "device_id": identity.device,
        "fleet": identity.fleet,
        "broker": upwards.broker,
        "version": __version__,
        "admission": "always",
        "boots": boots,
    }
    detector = DuplicateIdDetector(identity.boot, _FORGET_AFTER_PAUSES * _RECONNECT_S[1], former_boots=boots)
    return Agent(
        identity,
        job,
        EffectRunner(
            identity,
            link=up,
            trainer=trainer,
            usage=owner.meter,
            limits=limits,
            directory=directory,
            fetcher=ModelFetcher.of(upwards, settings.up_models_ca_file, queue.put, prefix="up_")
            if settings.up_models_by_url
            else None,
        ),
        queue=queue,
        link=up,
        trainer=trainer,
        owner=owner,
        limits=limits,
        storage=Storage(directory),
        presence=Presence(
            identity,
            up,
            detector,
            fetches=settings.up_models_by_url,
            features=FEATURES,
            more_features=lambda: (EVALUATE_FEATURE,) if site.summary.measures else (),
            encodings=ENCODINGS,
            path=lambda: site.summary.path,
        ),
        housekeeping=Housekeeping(trainer, IdleTimer(0.0), ServiceManager.from_environment()),
        status=StatusFile(directory, fixed),
        leader=LeaderEpoch(directory, identity.fleet),
    )
