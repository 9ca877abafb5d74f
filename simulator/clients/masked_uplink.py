"""Updates of a masked study: vectors of clients, sums of groups and the scale of the next round.

The code of devices and coordinator computes them. No keys are needed: masks cancel in a sum, so the sum of unmasked vectors
has the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpatch.coordinator.aggregation.limit_syntax import parse_aggregate_rule
from fedpatch.coordinator.aggregation.masked_mean import masked_mean, private_masked_mean
from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy, policy_of
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.masking.masked_groups import LEAST_GROUP, MAX_GROUP_OF_U8, group_sizes, largest_group
from fedpatch.shared.errors import UpdateRefused, UsageError
from fedpatch.shared.masking.device_vector import make_vector, step_between, weight_class
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.masking.masked_blob import HEADER_BYTES, MaskedUpdate
from fedpatch.shared.masking.private_vector import PrivateLayout, make_private_vector
from fedpatch.shared.masking.skellam_noise import skellam_values
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.wire.masking_messages import SecureTerms, ThresholdRule
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.simulator.spec.study import Study, client_id

_BASE = "00" * 32


class MaskedUplink:
    """The scale of the round, and the size of an update.

    Args:
        study: The study; `secure` is "groups".
        travelling: Schema of the tensors that travel.
        model: The initial global model.
        num_examples: Training examples of each client; the greatest weight class is the weight cap.
        metric: Metric of the task.
    """

    def __init__(
        self, study: Study, travelling: Schema, model: Tensors, num_examples: Sequence[int], metric: MetricTerms
    ) -> None:
        self.update_bytes = 0
        self._study, self._travelling, self._metric = study, travelling, metric
        self._scale = MaskedScale.first(travelling, model)
        self._weight_cap = max(map(weight_class, num_examples))

    def mean(
        self,
        round_number: int,
        clients: Sequence[int],
        *,
        base: Tensors,
        update_of: Callable[[int], Tensors],
        reports: Mapping[int, UpdateReport],
        seeds: Mapping[int, int],
    ) -> dict[str, Array]:
        """Return the mean of the clients' updates, and set the scale of the next round.

        Args:
            base: The global model that the clients began with.
            update_of: Returns the tensors that a client has trained.
            seeds: Seeds of their rounding.

        Raises:
            UpdateRefused: The sums have no weight.
        """
        policy = policy_of_study(self._study)
        if policy is not None:
            return self._private_mean(policy, round_number, clients, base=base, update_of=update_of, seeds=seeds)
        layout = VectorLayout(self._travelling, self._terms(round_number, len(clients)))
        updates: dict[str, MaskedUpdate] = {}
        for client in clients:
            update = update_of(client)
            elements = make_vector(
                layout,
                step=step_between(layout.specs, base, update),
                report=replace(reports[client], num_examples=weight_class(reports[client].num_examples)),
                metric=self._metric,
                seed=seeds[client],
            )
            updates[client_id(client)] = MaskedUpdate(bytes(32), _BASE, elements)
        groups = [OpenGroup(tuple(map(client_id, group)), ()) for group in groups_of(clients, self._study.group_size)]
        rule = parse_aggregate_rule(self._study.aggregate)
        found = masked_mean(groups, updates.__getitem__, layout=layout, schema=self._travelling, base=base, rule=rule)
        if found.report is None:
            raise UpdateRefused("out_of_range", f"no group of round {round_number} has a possible sum")
        clip = self._study.clip
        after = self._scale.after(found.report)
        self._scale = MaskedScale(after.ranges, after.clip if clip is None else clip)
        self.update_bytes = HEADER_BYTES + layout.nbytes
        return found.mean

    def _private_mean(
        self,
        policy: PrivacyPolicy,
        round_number: int,
        clients: Sequence[int],
        *,
        base: Tensors,
        update_of: Callable[[int], Tensors],
        seeds: Mapping[int, int],
    ) -> dict[str, Array]:
        """Return the mean with the noise of the clients, drawn from the study's seed."""
        layout = PrivateLayout(self._travelling, policy.clip, policy.steps)
        updates: dict[str, MaskedUpdate] = {}
        groups = list(groups_of(clients, self._study.group_size))
        for group in groups:
            share = (policy.noise_multiplier * policy.steps) ** 2 / threshold_of(ThresholdRule.HALF, len(group))
            for client in group:
                update = update_of(client)
                step = {spec.name: update[spec.name] - base[spec.name] for spec in layout.specs}
                seed = hashlib.sha256(f"{self._study.seed}/noise/{round_number}/{client}".encode()).digest()
                noise = skellam_values(SkellamNoise(seed, share), layout.size).astype(layout.dtype)
                elements = make_private_vector(layout, step, seeds[client]) + noise
                updates[client_id(client)] = MaskedUpdate(bytes(32), _BASE, elements)
        self.update_bytes = HEADER_BYTES + layout.nbytes
        return private_masked_mean(
            [OpenGroup(tuple(map(client_id, group)), ()) for group in groups],
            updates.__getitem__,
            layout=layout,
            schema=self._travelling,
            base=base,
            denominator=self._study.participants,
        )

    def _terms(self, round_number: int, participants: int) -> SecureTerms:
        study = self._study
        seed = hashlib.sha256(f"{study.seed}/masked/{round_number}".encode()).digest()[:16]
        return SecureTerms(
            threshold=ThresholdRule.HALF,
            group_min=LEAST_GROUP,
            group_max=min(largest_group(study.group_size, LEAST_GROUP), max(LEAST_GROUP, participants)),
            bits=8 if study.group_size <= MAX_GROUP_OF_U8 else 16,
            keep=1,
            seed=seed,
            clip=self._scale.clip if study.clip is None else study.clip,
            weight_cap=self._weight_cap,
            grid=write_grid(self._scale.ranges),
        )

    def state(self) -> dict[str, Any]:
        """Return plain data to resume from."""
        return {"ranges": list(self._scale.ranges), "clip": self._scale.clip, "update_bytes": self.update_bytes}

    def restore(self, before: Mapping[str, Any]) -> None:
        """Resume from `state`. Raises UsageError if it does not fit."""
        if len(before.get("ranges", ())) != len(self._scale.ranges):
            raise UsageError("what was saved has no scale of the masked values; delete it to begin anew")
        self._scale = MaskedScale(tuple(before["ranges"]), float(before["clip"]))
        self.update_bytes = int(before["update_bytes"])


def policy_of_study(study: Study) -> PrivacyPolicy | None:
    """Return the terms of differential privacy of a study; None if it has none."""
    group_max = largest_group(study.group_size, LEAST_GROUP)
    return policy_of(study.dp, study.noise_multiplier, study.dp_clip, study.delta, None, group_max)


def groups_of(clients: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Return the clients in groups of the sizes that a run with `group_size` = `size` forms.

    Example:
        >>> [len(group) for group in groups_of(range(70), 32)]
        [24, 23, 23]
    """
    start = 0
    for length in group_sizes(len(clients), size=size, least=LEAST_GROUP):
        yield clients[start : start + length]
        start += length
