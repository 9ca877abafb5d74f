"""A coordinator whose run has differential privacy, with random bytes that a test can count and repeat."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.coordinator.privacy import noise_draw
from fedpatch.coordinator.rounds.run_events import DevicePresence
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.wire.features import DEVICE_FEATURES
from fedpatch.shared.wire.messages import Accept
from tests.coordinator.effect_runners import Bench
from tests.support.specs import there

TERMS: dict[str, Any] = {
    "strategy": "fedavg",
    "private": "all",
    "dp": "central",
    "noise_multiplier": 1.0,
    "dp_clip": 0.5,
    "quorum": 1.0,
}


def prepare_private() -> Prepared:
    """Return a prepared FedAvg run of digits with private batch norm, so that all public values are trained."""
    return prepare(RunSettings(**TERMS))


class PrivateBench(Bench):
    """A coordinator whose devices support differential privacy."""

    def begin(self, devices: str = "ab") -> Bench:
        present = there()
        for device in devices:
            state = type(present)(**{**vars(present), "features": DEVICE_FEATURES})
            self.perform(self.engine.handle(DevicePresence(device, state), time.monotonic()))
        for device in devices:
            self.receive(device, Accept(10))
        return self


class CountedDraws:
    """Replaces os.urandom: a different stream for each draw, or the bytes of an earlier run by round."""

    def __init__(self, by_round: dict[int, bytes] | None = None) -> None:
        self.draws = 0
        self.by_round = dict(by_round or {})
        self.digests: dict[int, set[str]] = {}
        self._repeats = by_round is not None
        self._round = 0

    def installed(self, patch: Any) -> None:
        """Replace os.urandom, and record each use of noise."""
        real = noise_draw.SealedNoise.of_round
        draws = self

        def of_round(noise: noise_draw.SealedNoise, number: int, size: int) -> noise_draw.Draw:
            draws._round = number
            drawn = real(noise, number, size)
            draws.digests.setdefault(number, set()).add(drawn.digest)
            return drawn

        patch.setattr(noise_draw.SealedNoise, "of_round", of_round)
        patch.setattr(os, "urandom", self._bytes)

    def _bytes(self, count: int) -> bytes:
        self.draws += 1
        if self._repeats:
            return self.by_round[self._round]
        self.by_round[self._round] = np.random.default_rng(self.draws).bytes(count)
        return self.by_round[self._round]


def files_of_noise(directory: Path) -> list[str]:
    """Return the names of the noise files in a run's directory."""
    return sorted(path.name for path in directory.glob("noise-*"))
