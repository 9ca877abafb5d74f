"""Prepares a run from its settings: the task's schema, the private names, the strategy, the initial model."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fedpatch.coordinator.aggregation.limit_syntax import (
    Limits,
    parse_aggregate_rule,
    parse_examples_cap,
    parse_norm_bound,
)
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy, check_public, policy_of
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.coordinator.aggregation.strategy_calls import begin_strategy
from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.find_strategy import rate_of, strategy_for
from fedpatch.coordinator.pki.masking_authority import masking_authorities, revocation_source
from fedpatch.coordinator.rounds.auto_deadline import FIRST_DEADLINE_S
from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.coordinator.settings import RoundSettings, RunSettings
from fedpatch.shared.errors import UsageError
from fedpatch.shared.masking.vector_layout import travelling
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.tensors.packing import max_blob_bytes
from fedpatch.shared.tensors.patches import PatchPolicy
from fedpatch.shared.wire.chunk_sizes import chunk_bytes_within
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS, MAX_GRID_TENSORS, ThresholdRule
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import make_terms, require_fitting


@dataclass(frozen=True)
class Prepared:
    """The parts of a run that follow from its settings and task.

    Attributes:
        task: The task.
        strategy: The strategy.
        policy: The patch policy.
        plan: The training plan of the devices.
        schema: Schema of the whole model.
        public: Schema of its federated tensors.
        travelling: `public` with the moments that clients share.
        private_names: Names of the tensors that stay on the devices.
        initial: The state before the first round.
    """

    task: Task
    strategy: Strategy
    policy: PatchPolicy
    plan: TrainPlan
    schema: Schema
    public: Schema
    travelling: Schema
    private_names: frozenset[str]
    initial: ServerState


def prepare(settings: RunSettings) -> Prepared:
    """Find the task and the strategy, and build the initial model (imports torch).

    Raises:
        UsageError: A name is unknown, the target is out of the metric's range, the model exceeds `max_model_mib` or what the
            hosted broker retains, or has public values that differential privacy cannot cover, or more public tensors than
            masked groups allow.
    """
    task = find_task(settings.task)
    strategy = strategy_for(settings.strategy, task, settings.server_learning_rate)
    _check_target(settings, task)

    from fedpatch.shared.task_checks.trial_training import require_repeatable
    from fedpatch.shared.tasks.torch_model import initial_tensors, require_whole_ties, resolve_private, schema_of

    module = require_repeatable(task) if task.frozen else task.build_model()
    policy = resolve_private(settings.private, module, task.head)
    schema = schema_of(module)
    with_moments = schema.with_moments(strategy.moments)
    private_names = policy.private_names(with_moments)
    require_whole_ties(module, private_names)
    public = policy.public(schema)
    if settings.dp != "off":
        check_public(public)
    needed_mib = -(-max_blob_bytes(strategy.travelling(public)) // 2**20)
    if needed_mib > settings.max_model_mib:
        raise UsageError(
            f"the model and its moments may take {needed_mib} MiB; raise max_model_mib to that, here and on the devices"
        )
    _check_retained(settings, max_blob_bytes(strategy.travelling(public)))
    if settings.masked:
        _check_grid(public)
    plan = _plan(settings, task, strategy)
    require_fitting(plan, [one.name for one in schema.specs if one.trainable], private_names)
    tensors = initial_tensors(task, settings.seed)
    return Prepared(
        task=task,
        strategy=strategy,
        policy=policy,
        plan=plan,
        schema=schema,
        public=public,
        travelling=strategy.travelling(public),
        private_names=private_names,
        initial=begin_strategy(strategy, {name: tensors[name] for name in public.names}, public),
    )


def _check_target(settings: RunSettings, task: Task) -> None:
    metric, target = task.metric_terms, settings.target_ua
    if target is not None and not metric.allows(target):
        raise UsageError(
            f"target_ua is {target:g}, but the {metric.name} of task {task.name!r} is {metric.range_words}; choose one of those"
        )


def _check_retained(settings: RunSettings, model_bytes: int) -> None:
    """Raise UsageError for a model of more chunks than the hosted broker retains."""
    profile = settings.profile
    chunk_bytes = chunk_bytes_within(settings.chunk_kib * 1024, profile.packet_bytes)
    chunks = -(-model_bytes // chunk_bytes)
    if chunks > profile.retained_messages:
        raise UsageError(
            f"the model travels in {chunks} retained messages of {chunk_bytes} bytes, but {profile.service} retains "
            f"{profile.retained_messages:g}; raise chunk_kib, make more names private, or use another broker"
        )


def _check_grid(public: Schema) -> None:
    """Raise UsageError for a masked run with more public tensors than a request has ranges for."""
    count = len(travelling(public))
    if count > MAX_GRID_TENSORS:
        raise UsageError(
            f"secure = groups: the model has {count} public tensors of floating-point numbers, and masked groups allow "
            f"{MAX_GRID_TENSORS}; keep more of them on the devices with --private, or declare them frozen in the task"
        )


def _plan(settings: RunSettings, task: Task, strategy: Strategy) -> TrainPlan:
    learning_rate = settings.learning_rate or rate_of(task.learning_rates, strategy)
    if learning_rate is None:
        raise UsageError(
            f"task {task.name!r} names no learning rate for {strategy.name}; set one with --learning-rate, or in the task's "
            "learning_rates"
        )
    batch_size = settings.batch_size or task.batch_size
    plan = strategy.plan(learning_rate, batch_size, settings.epochs, settings.steps, settings.seed)
    return replace(plan, **make_terms(settings.prox, settings.phases, settings.personal, settings.finish))


def run_spec(
    run: str,
    epoch: int,
    settings: RunSettings,
    prepared: Prepared,
    chunk_bytes: int,
    leader_epoch: int | None = None,
) -> RunSpec:
    """Return the terms of a run for its engine.

    Args:
        epoch: Number of the process that executes it.
        leader_epoch: Epoch of a leader with standbys.
    """
    privacy = privacy_policy(settings)
    limits = Limits(
        parse_norm_bound(settings.norm_bound),
        parse_examples_cap(settings.max_num_examples),
        parse_aggregate_rule(settings.aggregate),
        settings.max_devices,
        settings.max_members,
    )
    return RunSpec(
        run=run,
        epoch=epoch,
        task=prepared.task.name,
        schema=prepared.schema.digest,
        public_schema=prepared.travelling.digest,
        private=str(prepared.policy),
        plan=prepared.plan,
        encoding=settings.model_encoding,
        chunk_bytes=chunk_bytes,
        max_blob_bytes=min(settings.max_model_mib * 2**20, max_blob_bytes(prepared.travelling)),
        rounds=settings.rounds,
        target_ua=settings.target_ua,
        time_limit_s=settings.time_limit_s,
        max_failed_rounds=settings.max_failed_rounds,
        devices=settings.devices,
        wait_s=settings.wait_s,
        participation=settings.participation,
        over_select=settings.over_select,
        policy=RoundPolicy(
            target=0,
            min_cohort=settings.min_cohort,
            quorum=settings.quorum,
            recruit_deadline_s=settings.recruit_deadline_s,
            deadline_s=settings.deadline_s or FIRST_DEADLINE_S,
            grace_s=settings.grace_s,
            rejoin_s=settings.rejoin_s,
            unmask_s=settings.unmask_s if settings.masked else None,
            quorum_updates=settings.quorum_updates,
            carries=settings.late == "carry",
        ),
        upload_slots=settings.upload_slots,
        upload_window=settings.upload_window,
        seed=settings.seed,
        round_interval_s=settings.round_interval_s,
        metric=prepared.task.metric_terms,
        # The clip of differential privacy replaces bounds that depend on the other updates of the round.
        limits=limits if privacy is None else Limits(max_devices=settings.max_devices),
        auto_deadline=settings.deadline_s is None,
        independent_every=settings.independent_every if privacy is None else 0,
        evaluate_every=settings.evaluate_every,
        evaluate_participation=settings.evaluate_participation,
        privacy=privacy,
        secure=secure_policy(settings) if settings.masked else None,
        carry=carry_policy(settings),
        leader_epoch=leader_epoch,
    )


def privacy_policy(settings: RunSettings) -> PrivacyPolicy | None:
    """Return the terms of differential privacy of a run; None if it is off."""
    return policy_of(
        settings.dp,
        settings.noise_multiplier,
        settings.dp_clip,
        settings.delta,
        settings.max_epsilon,
        settings.largest_group,
    )


def carry_policy(settings: RoundSettings) -> CarryPolicy | None:
    """Return the conditions of buffered rounds; None for a run that refuses late updates."""
    if settings.late != "carry":
        return None
    return CarryPolicy(settings.max_staleness, settings.staleness_power, settings.concurrency)


def secure_policy(settings: RunSettings) -> SecurePolicy:
    """Return the conditions of a masked run. Raises UsageError if keys must be signed, and the CA's key is here."""
    return SecurePolicy(
        size=settings.group_size,
        least=settings.min_group,
        threshold=ThresholdRule(settings.threshold),
        bits=8 * (1 + MASKED_ENCODINGS.index(settings.encoding)),
        colluders=settings.colluders,
        clip=settings.clip if settings.dp == "off" else settings.dp_clip,
        weight_cap=settings.weight_cap if settings.dp == "off" else 1,
        share_deadline_s=settings.share_deadline_s,
        unix_time=time.time,
        authorities=masking_authorities(settings),
        revocations=revocation_source(settings),
    )
