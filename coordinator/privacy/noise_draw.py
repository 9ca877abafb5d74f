"""The noise of an open round on the disk: `noise-000013.fp` in the run's directory, until the checkpoint of round 13 is saved.

Noise is drawn from the operating system once a round, never from the run's seed. The noise is on disk before it is used, and a
process that continues the round uses the same noise: a second draw would publish the same sum twice, and the mean of both has
less noise than the account assumes. The noise is deleted, durably, before the round's model is published, because a reader of
the noise could subtract it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpatch.coordinator.aggregation.gaussian_noise import normals, random_bytes_for
from fedpatch.shared.app.files import read_state, refusals_of, seal, sync_directory, unseal, write_atomic
from fedpatch.shared.errors import StateError
from fedpatch.shared.tensors.arrays import Array

_NOISE_LINE = b"fedpatch noise 1\n"


@dataclass(frozen=True)
class Draw:
    """The noise of a round: standard normal `values`, and the `digest` that names this draw."""

    values: Array
    digest: str


class SealedNoise:
    """The noise of one run's rounds.

    Args:
        directory: Directory of the run.

    Raises:
        StateError: The disk refuses; here and in each method.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of_round(self, round_number: int, size: int) -> Draw:
        """Return the noise of a round: the sealed noise if there is any, else new noise, which is sealed first.

        Args:
            round_number: The open round.
            size: Number of values.

        Raises:
            StateError: The sealed noise is damaged or has another size.
        """
        path = self._path(round_number)
        with refusals_of(path):
            if not path.exists():
                values = normals(os.urandom(random_bytes_for(size)), size)
                write_atomic(path, seal(_NOISE_LINE, values.astype("<f8").tobytes()))
            data = read_state(path)
        remedy = "remove the file: its round has released nothing, and draws new noise"
        try:
            content = bytes(unseal(path, _NOISE_LINE, data, "the noise of a round"))
        except StateError as error:
            raise StateError(f"{error}; {remedy}") from error
        if len(content) != 8 * size:
            raise StateError(f"{path}: has noise for {len(content) // 8} values, not for {size}; {remedy}")
        values = np.frombuffer(content, "<f8").astype(np.float64)
        if not np.isfinite(values).all():
            raise StateError(f"{path}: has a value that is no number; {remedy}")
        return Draw(values, hashlib.sha256(content).hexdigest())

    def drop_until(self, round_number: int) -> None:
        """Durably delete the noise of this round and of earlier rounds, whose models are saved."""
        with refusals_of(self._directory):
            found = self._directory.glob("noise-[0-9]*.fp")
            over = [path for path in found if int(path.stem.partition("-")[2]) <= round_number]
            for path in over:
                path.unlink(missing_ok=True)
            if over:
                sync_directory(self._directory)

    def _path(self, round_number: int) -> Path:
        return self._directory / f"noise-{round_number:06d}.fp"
