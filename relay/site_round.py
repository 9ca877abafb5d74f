"""One round of the site: the request of the hub as the terms of a coordinator.

The round has the hub's number, plan, patch policy and model: the blob is published in the site under the hub's digest.
`site_update` makes the answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.coordinator.pki.masking_authority import masking_authorities, no_revocations, revocation_source
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.coordinator.runtime.model_publisher import Blob
from fedpatch.coordinator.runtime.run_preparation import Prepared, run_spec
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.state.download_files import bytes_of
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site_deadlines import SiteDeadlines
from fedpatch.shared.errors import SchemaMismatch, WireError
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.tensors.arrays import Schema, Tensors, values_digest
from fedpatch.shared.tensors.packing import unpack
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.masking_messages import SecureTerms


@dataclass(frozen=True)
class SiteModel:
    """The task of a relay, and the schema of its whole model."""

    task: Task
    schema: Schema

    @classmethod
    def load(cls, reference: str) -> SiteModel:
        """Find the task and build its model (imports torch). UsageError if there is no such task."""
        task = find_task(reference)
        from fedpatch.shared.task_checks.trial_training import require_repeatable
        from fedpatch.shared.tasks.torch_model import schema_of

        return cls(task, schema_of(require_repeatable(task) if task.frozen else task.build_model()))


@dataclass(frozen=True)
class SiteMean(Strategy):
    """The unchanged mean of the site's updates; the hub's strategy makes the next model from the means of all sites."""

    name = "relay"
    description = "mean of a site's updates"

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """Return the state with the mean."""
        return replace(state, round=state.round + 1, tensors=dict(mean))


@dataclass(frozen=True)
class HubRound:
    """A round of the hub as the site runs it.

    Attributes:
        command: The hub's request, as the agent passes it to training.
        prepared: Its model, policy and plan.
        blob: Its global model, as it is published in the site.
    """

    command: TrainCommand
    prepared: Prepared
    blob: Blob

    @classmethod
    def of(cls, command: TrainCommand, model: SiteModel, chunk_bytes: int) -> HubRound:
        """Read the model of a request.

        Args:
            command: The request; its model is `blob`.
            model: The task of this relay.
            chunk_bytes: Size of a chunk in the site.

        Raises:
            WireError: The blob is not the model that the request names, or has other values.
            SchemaMismatch: The request is about another model than the relay's task.
            UsageError: Its patch policy does not fit the model.
            StateError: The file cannot be read.
        """
        manifest, plan = command.model, command.plan
        if command.schema != model.schema.digest:
            raise SchemaMismatch(f"the request has schema {command.schema[:12]}, the task {model.schema.digest[:12]}")
        policy = parse_policy(command.private)
        public = policy.public(model.schema)
        travelling = public.with_moments(plan.moments)
        assert command.blob is not None
        data = bytes_of(command.blob)
        meta, tensors = unpack(data, encoding=manifest.encoding, raw_bytes=manifest.raw_bytes, schema=travelling)
        if command.content and values_digest(tensors, travelling) != command.content:
            raise WireError("the model has other values than the request names")
        version = meta.get("round")
        if type(version) is not int or version < 1:
            raise WireError("the model does not name its round")
        state = ServerState(version - 1, tensors, {})
        private = policy.private_names(model.schema.with_moments(plan.moments))
        prepared = Prepared(
            model.task, SiteMean(), policy, plan, model.schema, public, travelling, private, initial=state
        )
        own = describe(
            data,
            chunk_bytes=chunk_bytes,
            encoding=manifest.encoding,
            raw_bytes=manifest.raw_bytes,
            schema=travelling.digest,
        )
        return cls(command, prepared, Blob(data, own))

    def spec(self, settings: RelaySettings, epoch: int, left_s: float) -> RunSpec:
        """Return the terms of the round.

        Args:
            epoch: The epoch of the site's coordinator.
            left_s: Time to the hub's deadline, in seconds.
        """
        command, site = self.command, settings.downwards
        spec = run_spec(command.key.run, epoch, site, self.prepared, self.blob.manifest.chunk_bytes)
        terms = command.secure
        times = SiteDeadlines.of(settings, left_s, masked=terms is not None)
        return replace(
            spec,
            # A relay holds no older model, so the devices of a masked round download the whole model.
            encoding=command.encoding if terms is None else command.model.encoding,
            secure=None if terms is None else _secure_policy(settings, terms, times.share_deadline_s),
            evaluates_only=command.evaluate,
            independent_every=0,
            rounds=command.key.round,
            first_round=command.key.round,
            devices=settings.min_cohort,
            wait_s=times.wait_s,
            policy=times.policy(spec.policy),
            auto_deadline=False,
        )


def site_authorities(settings: RelaySettings, terms: SecureTerms) -> Authorities | None:
    """Return the CAs of the site, whose certificates sign the keys of its devices; None where keys need no signature.

    Raises:
        UsageError: Keys must be signed, and the site's CA is unknown, or its key is on this machine.
    """
    if not terms.strict:
        return None
    return masking_authorities(_of_site(settings, terms))


def _of_site(settings: RelaySettings, terms: SecureTerms) -> RunSettings:
    return replace(settings.downwards, secure="groups", threshold=terms.threshold)


def _secure_policy(settings: RelaySettings, terms: SecureTerms, share_deadline_s: float) -> SecurePolicy:
    """Return the conditions of a masked round of the site: the hub's terms as they are."""
    return SecurePolicy(
        size=terms.group_max,
        least=terms.group_min,
        threshold=terms.threshold,
        bits=terms.bits,
        clip=terms.clip,
        weight_cap=terms.weight_cap,
        share_deadline_s=share_deadline_s,
        unix_time=time.time,
        authorities=site_authorities(settings, terms),
        revocations=revocation_source(_of_site(settings, terms)) if terms.strict else no_revocations,
        given=terms,
    )
