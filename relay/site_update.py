"""The relay's answer to its hub: the mean of the site's updates, in a masked round their sum in whole numbers.

The strategy is the hub's; the site does not change the mean. A sum of fewer devices than a group needs does not leave the site.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import ValidationError, convert

from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.masked_mean import possible_sums, vector_layout
from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements
from fedpatch.coordinator.aggregation.strategy_calls import apply_strategy
from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_events import Aggregated, ModelPublished
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.aggregator import requirements_of
from fedpatch.coordinator.runtime.bounded_mean import BoundedMean, aggregated
from fedpatch.coordinator.runtime.left_out_groups import show_left_out
from fedpatch.coordinator.runtime.model_packing import content_of
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.relay.site_round import HubRound
from fedpatch.shared.app.files import read_state, refusals_of, write_atomic
from fedpatch.shared.masking.group_sum import GroupSum, read_report
from fedpatch.shared.masking.masked_blob import MaskedUpdate
from fedpatch.shared.masking.site_sum import write_site_sum
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.tensors.moment_bounds import STEP
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.codec import to_bytes
from fedpatch.shared.wire.field_types import MAX_COUNT
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import MAX_MEMBERS, Evaluation, Manifest, UpdateReport, members_field

if TYPE_CHECKING:
    from fedpatch.coordinator.rounds.active_round import ActiveRound


_ANSWER, _ANSWER_ABOUT = "answer.blob", "answer.json"


@dataclass(frozen=True)
class SiteUpdate:
    """The relay's update to a request, in a file of the run's directory.

    Attributes:
        round: Number of the round.
        base: Digest of the hub's model.
        manifest: Manifest of the update.
        report: Its report.
        terms: Digest of the terms of a masked round; "" without.
    """

    round: int
    base: str
    manifest: Manifest
    report: UpdateReport
    terms: str = ""

    def save(self, directory: Path, blob: bytes) -> None:
        """Write the update durably; the file that describes it is written last."""
        with refusals_of(directory):
            write_atomic(directory / _ANSWER, blob)
            write_atomic(directory / _ANSWER_ABOUT, msgspec.json.encode(self))

    @classmethod
    def find(cls, directory: Path, command: TrainCommand) -> tuple[SiteUpdate, bytes] | None:
        """Return the update of a finished round for a repeated request; None if there is none, or it is damaged.

        A relay that is killed between the end of the site's round and its own upload then does not ask the site again, and no
        update counts twice.
        """
        try:
            found: SiteUpdate = convert(json.loads(read_state(directory / _ANSWER_ABOUT)), cls)
            blob = read_state(directory / _ANSWER)
        except (FileNotFoundError, NotADirectoryError, ValueError, ValidationError):
            return None
        asked = (command.key.round, command.base, command.encoding, command.chunk_bytes, _digest_of(command.secure))
        manifest = found.manifest
        if asked != (found.round, found.base, manifest.encoding, manifest.chunk_bytes, found.terms):
            return None
        return (found, blob) if hashlib.sha256(blob).hexdigest() == manifest.digest else None


def site_evaluation(record: RoundRecord, base: str, *, least: int, tells_members: bool) -> Evaluation:
    """Return the relay's answer to an evaluate round: the site's mean user accuracy, weighted by the devices that have one.

    Args:
        record: The evaluate round of the site.
        base: Digest of the hub's model.
        least: Least number of devices with a user accuracy; with fewer, no mean is reported.
        tells_members: Whether the hub knows `members` of an evaluation.
    """
    enough = record.measured >= least
    members = members_field(record.measured if tells_members and enough else 1)
    return Evaluation(base, record.user_accuracy if enough else None, record.num_examples, record.seconds, members)


def _digest_of(terms: SecureTerms | None) -> str:
    return "" if terms is None else hashlib.sha256(to_bytes(terms)).hexdigest()


class SiteAggregator:
    """The AggregatorPort of a round of the site: publishes the hub's model and saves the mean of the updates.

    Args:
        hub_round: The round.
        directory: Files of the run.
        spec: The terms of the round.
        say: Shows a line to the operator.
        tells_members: Whether the hub knows `members` of a report.
        opened: Returns the open round.
        now: Returns monotonic seconds.

    Attributes:
        state: The hub's model; after `save` the mean of the site's updates.
        base: Digest of the hub's model; empty before it is published.
        answer: The relay's update, once the round's record is saved.
    """

    def __init__(
        self,
        hub_round: HubRound,
        directory: Path,
        spec: RunSpec,
        say: Callable[[str], None],
        *,
        tells_members: bool,
        opened: Callable[[], ActiveRound | None],
        now: Callable[[], float],
    ) -> None:
        self.state = self._next = hub_round.prepared.initial
        self.base = ""
        self.answer: tuple[SiteUpdate, bytes] | None = None
        self._prepared = hub_round.prepared
        self._spec = spec
        self._say = say
        self._mean = BoundedMean(hub_round.prepared, spec, directory, say)
        self._hub_round = hub_round
        self._site_directory = directory
        self._tells_members = tells_members
        self._opened = opened
        self._now = now
        self._began_at = now()
        self._members = self._steps = self._weight = 0
        self._total: GroupSum | None = None

    def leave_used_base(self) -> None:
        """Keep the hub's model: its devices train on no other one, and the hub moves a base that was used."""

    def requirements(self, work: CarriedWork | None = None) -> UpdateRequirements:
        """Return the requirements of an update; a site carries no work into later rounds."""
        assert work is None, "a site carries no work"
        return requirements_of(self._prepared, self._spec, self.base, self.state.tensors)

    def publish(self, publisher: ModelPublisher, *, chunks: bool = True) -> ModelPublished:
        """Publish the hub's model under its own digest; without `chunks` by URL only, where it has one.

        Raises BrokerError if the broker refuses a chunk.
        """
        manifest, secure = self._hub_round.blob.manifest, self._hub_round.command.secure
        urls = publisher.publish(self._hub_round.blob, chunks=chunks)
        self.base = manifest.digest
        content = content_of(self.state.tensors, self._hub_round.blob.data, manifest, self._prepared.travelling)
        return ModelPublished(manifest, secure=secure, version=self.state.round, urls=urls, content=content)

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
        """Make the mean within the bounds of the site, and note the devices, steps and examples behind it.

        The examples are those that the mean weighs: with the cap of the site, fewer than its devices report. Otherwise one
        device with an invented number would raise the weight of the whole site at the hub, though it hardly counts in the mean.
        """
        current = self._opened()
        reports = {} if current is None else current.reports
        self._members = min(sum((members or {}).get(device, 1) for device in devices), MAX_MEMBERS)
        counted = {device: num_examples[device] for device in devices}
        self._weight = min(sum(example_weights(counted, self._spec.limits.examples, members).values()), MAX_COUNT)
        self._steps = min(sum(report.steps for report in reports.values() if report is not None), MAX_COUNT)
        found = self._mean.of(self.state, counted, read, members=members)
        self._next = apply_strategy(self._prepared.strategy, self.state, found.mean, self._prepared.public)
        return aggregated(found)

    def aggregate_masked(
        self,
        groups: Sequence[OpenGroup],
        terms: SecureTerms,
        read: Callable[[str], MaskedUpdate],
        *,
        target: int,
        sites: Mapping[str, GroupSum] | None = None,
    ) -> Aggregated:
        """Sum the site's updates in whole numbers. A sum of fewer devices than a group needs does not leave the site."""
        layout = vector_layout(self._prepared.travelling, terms)
        sums = possible_sums(groups, read, layout=layout, sites=sites, metric=self._spec.metric)
        show_left_out(sums.left_out, self._say)
        total = sums.total
        if total is None or total.devices < terms.group_min:
            self._say(f"fewer devices are left than the {terms.group_min} of a group, so nothing is sent")
            every = [device for group in groups for device in group.devices]
            return Aggregated(left_out=tuple(sorted([*every, *(sites or ())])))
        self._total, self._members = total, total.devices
        return Aggregated(figures=read_report(layout, total), left_out=sums.left_out)

    def save(self, record: RoundRecord, pause: Mapping[str, Any] = {}) -> None:
        """Save the mean, or the sum, and the figures of the round as the relay's update; the hub decides about pauses.

        User accuracies are left out if fewer than `min_cohort` devices have measured one.
        """
        command = self._hub_round.command
        enough = record.measured >= self._spec.policy.min_cohort
        report = UpdateReport(
            base=command.base,
            num_examples=self._weight or record.num_examples,
            steps=self._steps,
            train_loss=record.train_loss or 0.0,
            user_accuracy_before=record.user_accuracy if enough else None,
            user_accuracy_after=record.user_accuracy_after if enough else None,
            download_s=command.download_s,
            train_s=self._now() - self._began_at,
            members=self._members if self._tells_members else 1,
        )
        travelling = self._prepared.travelling
        if self._total is None or command.secure is None:
            tensors = self._next.tensors | self._counters_within(report.num_examples)
            packed = pack(tensors, travelling, report.plain, command.encoding)
        else:
            packed = write_site_sum(vector_layout(travelling, command.secure), self._total, command.base)
        manifest = packed.manifest(command.chunk_bytes, travelling)
        answer = SiteUpdate(record.round, command.base, manifest, report, _digest_of(command.secure))
        answer.save(self._site_directory, packed.blob)
        self.answer, self.state = (answer, packed.blob), self._next

    def _counters_within(self, num_examples: int) -> dict[str, Array]:
        """Return the step counts of moments, each at most that of a device with `num_examples`, as the hub checks.

        A device whose examples are capped has made more steps than its weight accounts for. With a bound of norms they are
        bounded already, without one they are not.
        """
        base, steps = self.state.tensors, self._hub_round.command.plan.steps_for(num_examples)
        counters = [spec.name for spec in self._prepared.travelling.specs if spec.name.endswith(STEP)]
        return {
            name: np.minimum(self._next.tensors[name], np.float32(base[name] + np.float32(steps))) for name in counters
        }


def plain_failure(record: RoundRecord) -> str:
    """Describe a failed round of the site in words, for the relay's log."""
    words = f"{record.failure}, {record.reported} of {record.needed} updates"
    reasons: dict[str, Any] = {**record.decline_reasons, **record.failures}
    return f"{words} ({', '.join(f'{count} {why}' for why, count in sorted(reasons.items()))})" if reasons else words
