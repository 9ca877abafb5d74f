"""The owner of the global model, as the event loop uses it: a run's Aggregator, or the aggregator of a relay's site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_events import Aggregated, ModelPublished
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.shared.masking.group_sum import GroupSum
from fedpatch.shared.masking.masked_blob import MaskedUpdate
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.masking_messages import SecureTerms


class AggregatorPort(Protocol):
    """Publishes, aggregates and saves the global model (runtime.aggregator.Aggregator describes the calls)."""

    def leave_used_base(self) -> None:
        """Move the model of a masked run if a round may have begun with its values."""

    def publish(self, publisher: ModelPublisher, *, chunks: bool = True) -> ModelPublished:
        """Publish the global model."""

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
        """Make the next global model from the updates of devices.

        Args:
            devices: The devices whose updates count.
            read: Returns the tensors of a device's update.
            target: Number of devices that the round was meant for.
            carried: Carried work, by device.
            members: Number of devices that an update speaks for, by device.
        """

    def aggregate_masked(
        self,
        groups: Sequence[OpenGroup],
        terms: SecureTerms,
        read: Callable[[str], MaskedUpdate],
        *,
        target: int,
        sites: Mapping[str, GroupSum] | None = None,
    ) -> Aggregated:
        """Make the next global model from the sums of masked groups.

        Args:
            read: Returns the masked update of a device.
            target: Number of devices that the round was meant for.
            sites: The sums of sites, by relay.
        """

    def save(self, record: RoundRecord, pause: Mapping[str, Any] = {}) -> None:
        """Save the aggregated model with the record of its round."""
