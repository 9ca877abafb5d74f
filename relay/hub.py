"""The relay as a device of its hub: an agent whose training is a round of the site."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.policy.admission_mode import parse_admission_mode
from fedpatch.device_agent.policy.owner_limits import OFF, OwnerLimits, SecureLimits
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy
from fedpatch.device_agent.policy.preferences import Preferences
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.policy.usage import OwnLoadAverage, UsageLedger, local_now
from fedpatch.device_agent.runtime.agent import Agent, EventQueue, Stop
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.housekeeping import Housekeeping, IdleTimer, ServiceManager
from fedpatch.device_agent.runtime.model_fetcher import ModelFetcher
from fedpatch.device_agent.runtime.presence import DuplicateIdDetector, Identity, Presence
from fedpatch.device_agent.runtime.startup import stop_at_end_of_stdin
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.state.leader_epoch import LeaderEpoch
from fedpatch.device_agent.state.status_file import MAX_BOOTS, StatusFile, former_boots, lock_state_dir
from fedpatch.device_agent.state.storage_check import PATCHES, Storage
from fedpatch.relay.presences import Needs
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site import Site
from fedpatch.relay.site_round import SiteModel, site_authorities
from fedpatch.shared import __version__
from fedpatch.shared.app.signals import exit_code_of, forward_signals
from fedpatch.shared.diagnostics.own_certificate import check_holder
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.masking.group_context import highest_code
from fedpatch.shared.masking.site_sum import most_devices
from fedpatch.shared.mqtt.broker_settings import exposure, link_options
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.wire.masking_messages import MIN_GROUP, SecureTerms
from fedpatch.shared.wire.messages import (
    CARRY_FEATURE,
    EVALUATE_FEATURE,
    MEMBERS_FEATURE,
    SUMS_FEATURE,
    WorkRequest,
)
from fedpatch.shared.wire.plan_terms import PLAN_TERMS
from fedpatch.shared.wire.reason_codes import DeclineReason

FEATURES: tuple[str, ...] = (CARRY_FEATURE, *PLAN_TERMS, SUMS_FEATURE)
"""Features of requests that a relay accepts, besides EVALUATE_FEATURE. Devices of its site also need the plan's features."""
ENCODINGS = ("fp32+zstd", "fp16+zstd", "fp32", "fp16")
"""Encodings of a relay: those that need no residual of the relay's own."""
_RECONNECT_S = (1.0, 60.0)
_FORGET_AFTER_PAUSES = 3.0
_UNLIMITED = 2**53

_log = logging.getLogger("fedpatch.relay")


def unsupported(request: WorkRequest) -> str:
    """Name the part of a request that a relay cannot pass on, with the remedy; "" if it can pass on all.

    Args:
        request: The parent's request.
    """
    reasons = {
        "differential privacy, whose account counts devices of one coordinator": request.privacy is not None,
        "control variates, whose mean the parent forms over single devices": request.plan.has_controls,
        "a measurement of learning alone": request.measure_independent and request.secure is None,
    }
    found = next((words for words, asked in reasons.items() if asked), "")
    return f"a relay does not pass on {found}; have the devices take part without a relay" if found else ""


class RelayLimits(OwnerLimits):
    """The limits of a relay: it accepts requests that it can pass on, while its site is willing.

    The owners of the site's devices have limits of their own, which their agents keep.

    Args:
        settings: The relay's settings.
        site: The site.
    """

    def __init__(self, settings: RelaySettings, site: Site) -> None:
        super().__init__(
            settings.device_dir / PATCHES,
            private="none",
            max_steps=_UNLIMITED,
            max_epochs=_UNLIMITED,
            secure=SecureLimits(OFF, min_group=MIN_GROUP, signs=True),
        )
        self._settings = settings
        self._site = site

    def refusal(self, task: str, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a request; None if the relay accepts it."""
        if why := unsupported(request):
            return AdmissionDecision(False, why, reason=DeclineReason.UNSUPPORTED)
        if (condition := self._site.summary.unwilling) is not None:
            return AdmissionDecision(False, "too few devices of the site would take part", condition)
        if (refused := self._site_refusal(request)) is not None:
            return refused
        self._site.tells_members = MEMBERS_FEATURE in request.features
        return super().refusal(task, request)

    def _site_refusal(self, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a round that the site cannot run; None if it can."""
        needs = Needs.of(request.plan, request.secure, evaluates=request.evaluates)
        able, least = self._site.summary.able(needs), self._settings.min_cohort
        members = sum(one.members * count for one, count in able.items())
        if members < needs.group_min:
            why = f"too few devices of the site would mask updates: a group has at least {needs.group_min}"
            return AdmissionDecision(False, why)
        if (devices := sum(able.values())) < least:
            why = f"{devices} willing devices of the site know {', '.join(sorted(needs.features))}, and min_cohort is {least}"
            return AdmissionDecision(False, why)
        return None if request.secure is None else self._masked_refusal(request.secure, members)

    def _masked_refusal(self, terms: SecureTerms, members: int) -> AdmissionDecision | None:
        """Return the decision to decline if the relay cannot sum so many devices under these terms; None if it can."""
        fits = most_devices(highest_code(terms.bits, terms.group_max))
        if members > fits:
            why = f"the sum of {members} devices does not fit 32 bits, which hold that of {fits}; split the site"
            return AdmissionDecision(False, why, reason=DeclineReason.UNSUPPORTED)
        try:
            site_authorities(self._settings, terms)
        except FedpatchError as error:
            # The decline goes to the hub, which learns no path of the site.
            _log.error("the site: %s", str(error).replace("set ca_file", "set down_ca_file"))
            why = "this relay cannot use the CA of its site (down_ca_file); its log names the remedy"
            return AdmissionDecision(False, why, reason=DeclineReason.UNSUPPORTED)
        return None


class _NoFacts:
    """A relay has no facts about a device to look up."""

    def ask(self) -> None:
        """Do nothing."""


class RelayOwner(OwnerPolicy):
    """The policy of a relay, which is unwilling when its site is.

    Args:
        directory: State directory of the device side.
        site: The site.
    """

    def __init__(self, directory: Path, site: Site) -> None:
        super().__init__(
            parse_admission_mode("always"),
            Preferences.of(PreferenceSettings()),
            usage=UsageLedger(directory),
            watcher=_NoFacts(),
            local_now=local_now,
            own_memory_mib=site.resident_mib,
            own_load=OwnLoadAverage(1, 1),
        )
        self._site = site

    def tick(self, job: Job, now: float) -> None:
        """Let time pass, and copy the site's willingness."""
        super().tick(job, now)
        self._site.busy = job.key is not None
        self.unwilling = self._site.summary.unwilling


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
        identity: Names of the relay as a device.
        queue: The queue that the agent takes its events from.
        site: The site, in place of a training process.
        link: Makes the connection to the parent's broker; takes the arguments of MqttLink.
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
    trainer = cast(Trainer, site)
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
        Job(max_blob_bytes=settings.max_model_mib * 2**20, sums=True),
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
