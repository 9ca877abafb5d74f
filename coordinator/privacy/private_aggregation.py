"""Aggregation with differential privacy: the account, the noise if the coordinator adds it, and the noised mean."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedpatch.coordinator.aggregation.gaussian_noise import private_mean, values_of
from fedpatch.coordinator.aggregation.masked_mean import private_masked_mean
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.privacy.noise_draw import SealedNoise
from fedpatch.coordinator.privacy.privacy_account import PrivacyAccount
from fedpatch.shared.errors import UsageError
from fedpatch.shared.masking.masked_blob import MaskedUpdate
from fedpatch.shared.masking.private_vector import PrivateLayout
from fedpatch.shared.tensors.arrays import Array, Schema


class PrivateAggregation:
    """Owns the noise and the account of one run.

    Args:
        blobs: Blob store of the run, for the account.
        directory: Directory of the run, for the noise: a store may keep deleted blobs.
        policy: The terms of differential privacy.
        schema: Names, shapes and dtypes of the tensors that travel.
        saved_round: Number of rounds whose models are saved; their noise is deleted.

    Raises:
        StateError: The account is damaged or lost, or the disk refuses.
    """

    def __init__(
        self,
        blobs: BlobStore,
        directory: Path,
        policy: PrivacyPolicy,
        schema: Schema,
        saved_round: int,
    ) -> None:
        self._policy = policy
        self._schema = schema
        self._noise = SealedNoise(directory)
        self._releases = PrivacyAccount(blobs, saved_round)
        self.saved(saved_round)

    def aggregate(
        self,
        state: ServerState,
        devices: Sequence[str],
        read: Callable[[str], Mapping[str, Array]],
        denominator: int,
    ) -> tuple[dict[str, Array], dict[str, float | None]]:
        """Return the noised mean of a round, and the account for its record.

        Args:
            state: The state before the round.
            devices: Devices whose updates count.
            read: Returns the tensors of a device's update.
            denominator: Devices that the round is meant for.

        Raises:
            UsageError: The release would exceed the run's `max_epsilon`. Nothing is released.
            StateError: The disk refuses, or a file of the account is damaged.
        """
        draw = self._noise.of_round(state.round + 1, values_of(self._schema))
        account = self._count(draw.digest, devices)
        mean = private_mean(
            (read(device) for device in sorted(devices)),
            draw.values,
            schema=self._schema,
            base=state.tensors,
            policy=self._policy,
            denominator=denominator,
        )
        return mean, account

    def aggregate_masked(
        self,
        state: ServerState,
        groups: Sequence[OpenGroup],
        read: Callable[[str], MaskedUpdate],
        denominator: int,
    ) -> tuple[dict[str, Array], dict[str, float | None]]:
        """Return the mean of a masked round, to which the devices have added the noise, and the account for its record.

        Args:
            state: The state before the round.
            groups: The open groups. After a crash the groups and their sums are the same, so they are one release. A repeated
                round has other masks and other noise, so it is another release.
            read: Returns the masked update of a device.
            denominator: Devices that the round is meant for.

        Raises:
            UsageError: The release would exceed the run's `max_epsilon`.
            StateError: The disk refuses, or the account is damaged.
        """
        seeds = sorted(mask.seed for group in groups for mask in group.masks)
        digest = hashlib.sha256(b"".join(seeds)).hexdigest()
        account = self._count(digest, sorted(device for group in groups for device in group.devices))
        mean = private_masked_mean(
            groups,
            read,
            layout=PrivateLayout(self._schema, self._policy.clip, self._policy.steps),
            schema=self._schema,
            base=state.tensors,
            denominator=denominator,
        )
        return mean, account

    def _count(self, digest: str, devices: Sequence[str]) -> dict[str, float | None]:
        """Count a release in the account, and return the account. Beyond `max_epsilon` raise UsageError and count nothing."""
        spent = self._policy.epsilon(used := self._releases.most_used_with(digest, devices))
        limit = self._policy.max_epsilon
        if limit is not None and spent > limit:
            raise UsageError(
                f"epsilon would be {spent:.4g} for the device that {used} releases use; the run's max_epsilon is {limit:g}, so "
                "its rounds are over; start a new run, which adds to what was released"
            )
        self._releases.note(digest, devices)
        return {
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": self._policy.delta,
            "rounds": used,
            "all_releases": self._releases.all_releases,
            "noise_multiplier": self._policy.noise_multiplier,
        }

    def saved(self, round_number: int) -> None:
        """Delete the noise of this round and of earlier rounds: its model is saved, and not yet published."""
        self._noise.drop_until(round_number)
