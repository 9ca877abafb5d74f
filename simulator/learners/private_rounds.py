"""Rounds with central differential privacy: the coordinator's own arithmetic, with noise from the study's seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedpatch.coordinator.aggregation.gaussian_noise import normals, private_mean, random_bytes_for, values_of
from fedpatch.shared.tensors.arrays import Array, Schema
from fedpatch.simulator.clients.masked_uplink import policy_of_study
from fedpatch.simulator.learners.norm_bounded_learner import read_spooled, remove_spooled
from fedpatch.simulator.spec.study import Study


def fold_private(
    folder: Path, clients: Sequence[int], *, study: Study, round_number: int, schema: Schema, base: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the noised mean of the updates of these clients in `folder`, and delete them.

    Args:
        folder: Folder with a file for each update.
        study: The terms of differential privacy; the round is planned for `participants` clients.
        round_number: The round; equal seeds and rounds give equal noise.
        schema: Names, shapes and dtypes of the tensors.
        base: The global model as clients read it.
    """
    size, policy = values_of(schema), policy_of_study(study)
    assert policy is not None
    drawn = np.random.default_rng([study.seed, round_number]).bytes(random_bytes_for(size))
    mean = private_mean(
        (read_spooled(folder, client) for client in sorted(clients)),
        normals(drawn, size),
        schema=schema,
        base=base,
        policy=policy,
        denominator=study.participants,
    )
    remove_spooled(folder, clients)
    return mean
