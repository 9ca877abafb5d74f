"""The global model of a run: packed for devices, aggregated with the updates of a round, saved with the round's record."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import UNSET

from fedpatch.coordinator.aggregation.aggregate_result import AggregateResult
from fedpatch.coordinator.aggregation.control_variates import add_controls
from fedpatch.coordinator.aggregation.masked_mean import masked_mean, vector_layout
from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.rebased_updates import Staleness
from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy_calls import apply_strategy
from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.privacy.private_aggregation import PrivateAggregation
from fedpatch.coordinator.rounds.far_updates import unusual_devices
from fedpatch.coordinator.rounds.round_journal import RoundStart
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_events import Aggregated, ModelPublished
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.bases_in_memory import KeptBases
from fedpatch.coordinator.runtime.bounded_mean import BoundedMean, aggregated
from fedpatch.coordinator.runtime.left_out_groups import show_left_out
from fedpatch.coordinator.runtime.model_packing import content_of, pack_model
from fedpatch.coordinator.runtime.model_publisher import Blob, ModelPublisher
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.runtime.used_base import UsedBase
from fedpatch.coordinator.storage.checkpoint import save_checkpoint
from fedpatch.coordinator.storage.delta_history import DeltaHistory
from fedpatch.coordinator.storage.kept_checkpoints import kept_checkpoints
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.group_sum import GroupSum
from fedpatch.shared.masking.masked_blob import MaskedUpdate
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.masking_messages import SecureTerms

_FAR_REMEDY = (
    "look at its data, or hold it with fedpatch devices quarantine; if it is honest and its data are unlike the others', "
    "raise norm_bound"
)
_SYSTEM: random.Random = random.SystemRandom()


def requirements_of(
    prepared: Prepared, spec: RunSpec, base: str, model: Mapping[str, Array] | None
) -> UpdateRequirements:
    """Return the requirements of an update.

    Args:
        base: Digest of the round's global model.
        model: Its tensors by name; None if they are not known.
    """
    return UpdateRequirements(
        prepared.travelling, prepared.private_names, base, spec.metric, model, prepared.plan, spec.limits
    )


class Aggregator:
    """Owns the server's state.

    Args:
        state: The state after the last completed round.
        blobs: Blob store of the run.
        directory: Directory of the run, for files that are not kept.
        prepared: Task, strategy and schemas.
        spec: The terms of the run.
        say: Shows a line to the operator.
        opening: The open round of an earlier process, which goes on; None without.
        entropy: Randomness of moved bases.

    Attributes:
        state: The state after the last round that is saved, with the base that is published.
        base: Digest of the global model that the open round trains on; empty before the first one is published.
    """

    def __init__(
        self,
        state: ServerState,
        blobs: BlobStore,
        directory: Path,
        prepared: Prepared,
        spec: RunSpec,
        say: Callable[[str], None],
        *,
        opening: RoundStart | None = None,
        entropy: random.Random = _SYSTEM,
    ) -> None:
        self._used_base = UsedBase(state, prepared, spec, opening, entropy)
        self.state = self._next = self._used_base.state
        self.base = ""
        self._blobs = blobs
        self._prepared = prepared
        self._spec = spec
        self._say = say
        self._mean = BoundedMean(prepared, spec, directory, say)
        self._deltas = DeltaHistory(blobs, prepared.travelling, spec)
        # Devices that were shown, each once: the line of each of their rounds names them too.
        self._named_far: set[str] = set()
        self._bases = KeptBases(blobs, prepared, spec)
        self._private = None
        if spec.privacy is not None:
            self._private = PrivateAggregation(blobs, directory, spec.privacy, prepared.travelling, state.round)

    def leave_used_base(self) -> None:
        """Move the model of a masked run a little if a round may have begun with its values.

        A device masks one update from a base, and the base of a failed round, of a start and of an older state may be used.
        """
        if (moved := self._used_base.leave()) is not None:
            self.state = self._next = moved

    def publish(self, publisher: ModelPublisher, *, chunks: bool = True) -> ModelPublished:
        """Publish the global model and the deltas that lead to it; without `chunks`, blobs with a URL only by URL.

        Raises BrokerError if the broker refuses a chunk.
        """
        blob, manifest = pack_model(self.state, self._prepared, self._spec)
        deltas = self._deltas.path_to(self.state, manifest.size_bytes)
        changes = tuple(delta for _, delta in deltas)
        steps = [Blob(step, delta.manifest) for step, delta in deltas]
        urls = publisher.publish(Blob(blob, manifest), steps, chunks=chunks)
        self.base = manifest.digest
        self._bases.keep(self.state.round, self.base, self.state.tensors)
        content = content_of(self.state.tensors, blob, manifest, self._prepared.travelling)
        return ModelPublished(
            manifest, changes, self._terms(), self.state.round, self.state.counted, urls, content=content
        )

    def requirements(self, work: CarriedWork | None = None) -> UpdateRequirements:
        """Return the requirements of an update that was trained on the published model, or on the base of carried work.

        Raises:
            UpdateRefused: The base of the work is gone.
        """
        if work is not None:
            return requirements_of(self._prepared, self._spec, work.base, self._bases.of(work))
        return requirements_of(self._prepared, self._spec, self.base, self.state.tensors)

    def aggregate(
        self,
        devices: Sequence[str],
        num_examples: Mapping[str, int],
        read: Callable[[str], Mapping[str, Array]],
        target: int = 0,
        carried: Mapping[str, CarriedWork] | None = None,
        *,
        round_number: int,
        members: Mapping[str, int] | None = None,
    ) -> Aggregated:
        """Make the next global model; `save` makes it the state.

        Updates are added one at a time, in the order of device names: the same updates give the same bits.

        Args:
            devices: Devices whose updates count, sorted.
            read: Returns the tensors of a device's update.
            target: Devices that the round is meant for, which differential privacy divides by.
            carried: The carried work of the devices whose updates are of earlier rounds.
            members: Number of devices whose mean an update is, by device, if more than one.
        """
        if self._private is not None:
            mean, privacy = self._private.aggregate(self.state, devices, read, max(1, target))
            self._aim(apply_strategy(self._prepared.strategy, self.state, mean, self._prepared.public))
            return Aggregated(privacy=privacy)
        folded = self._mean.of(
            self.state,
            {device: num_examples[device] for device in devices},
            read,
            stale={device: self._staleness(work) for device, work in (carried or {}).items()},
            members=members,
        )
        mean, after = folded.mean, self.state
        if self._prepared.strategy.has_controls:
            added = add_controls(
                self.state,
                mean,
                devices,
                round_number=round_number,
                population=self._spec.devices,
                clipped=folded.clipped,
            )
            mean, after = added.mean, added.kept_in(self.state)
        aimed = apply_strategy(self._prepared.strategy, self.state, mean, self._prepared.public)
        kept = replace(aimed, references=folded.references, counted=after.counted, population=after.population)
        self._aim(kept)
        return aggregated(folded)

    def _staleness(self, work: CarriedWork) -> Staleness:
        versions = self.state.round - work.version
        assert self._spec.carry is not None
        return Staleness(versions, self._spec.carry.factor(versions), self._bases.of(work))

    def _aim(self, aimed: ServerState) -> None:
        self._next = self._deltas.apply(self.state, aimed, self.base)

    def aggregate_masked(
        self,
        groups: Sequence[OpenGroup],
        terms: SecureTerms,
        read: Callable[[str], MaskedUpdate],
        *,
        target: int,
        sites: Mapping[str, GroupSum] | None = None,
    ) -> Aggregated:
        """Make the next global model of a masked round; `save` makes it the state.

        Args:
            read: Returns the masked update of a device.
            target: Devices that the round is meant for, which differential privacy divides by.
            sites: Sums of sites by the name of their relay; none with differential privacy.
        """
        if self._private is not None:
            mean, privacy = self._private.aggregate_masked(self.state, groups, read, max(1, target))
            self._aim(apply_strategy(self._prepared.strategy, self.state, mean, self._prepared.public))
            return Aggregated(privacy=privacy)
        schema = self._prepared.travelling
        layout = vector_layout(schema, terms)
        rule, base = self._spec.limits.rule, self.state.tensors
        folded = masked_mean(
            groups,
            read,
            layout=layout,
            schema=schema,
            base=base,
            rule=rule,
            sites=sites,
            metric=self._spec.metric,
        )
        show_left_out(folded.left_out, self._say)
        if folded.report is None:
            return Aggregated(left_out=folded.left_out)
        aimed = apply_strategy(self._prepared.strategy, self.state, folded.mean, self._prepared.public)
        scale = MaskedScale(layout.ranges, terms.clip).after(folded.report)
        self._aim(replace(aimed, scale=scale))
        pulled = AggregateResult(folded.mean, pulls=folded.pulls, num_updates=folded.report.devices)
        return Aggregated(
            figures=folded.report,
            left_out=folded.left_out,
            pulls=pulled.farthest_pulls(),
            pull_quantiles=pulled.pull_quantiles(),
        )

    def _terms(self) -> SecureTerms | None:
        """Return the terms of the next masked round; its weight cap may follow from the cohort."""
        policy = self._spec.secure
        if policy is None:
            return None
        scale = self.state.scale or MaskedScale.first(self._prepared.travelling, self.state.tensors)
        return SecureTerms(
            threshold=policy.threshold,
            group_min=policy.least,
            group_max=policy.largest,
            bits=policy.bits,
            keep=1,
            colluders=policy.colluders or UNSET,
            seed=self._used_base.salt or terms_seed(self._spec.seed, self.state.round + 1),
            clip=policy.clip or scale.clip,
            weight_cap=policy.weight_cap or 1,
            grid=write_grid(scale.ranges),
            strict=policy.strict,
        )

    def save(self, record: RoundRecord, pause: Mapping[str, Any] = {}) -> None:
        """Save the aggregated model, the record of its round and the pause after it (`pause_of`), all in one checkpoint."""
        kept = kept_checkpoints(self._spec.carry)
        self._show_far(record)
        meta = {"record": record.to_dict(), **pause}
        save_checkpoint(self._blobs, self._next, self._prepared.public, meta, kept=kept)
        if self._private is not None:
            self._private.saved(self._next.round)
        self._deltas.commit()
        before, self.state = self.state, self._next
        self._used_base.note_saved(before, self.state)

    def _show_far(self, record: RoundRecord) -> None:
        """Show each unusual device with the remedy, once: the line of each of its rounds names it too."""
        for device in unusual_devices(record.far, record.pulls):
            if device not in self._named_far:
                self._named_far.add(device)
                self._say(f"the updates of {device} are far from those of the others: {_FAR_REMEDY}")


def terms_seed(run_seed: int, round_number: int) -> bytes:
    """Return the public seed in the terms of a masked round: the same after a crash, another in each round."""
    return hashlib.sha256(f"subset {run_seed} {round_number}".encode()).digest()[:16]
