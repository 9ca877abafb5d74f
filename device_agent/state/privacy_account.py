"""The device's own account of differential privacy: which rounds its updates were offered to, and with how much noise.

One file, a line of JSON after a checksum. It is written before an update is offered, so that a crash counts a round and never
misses it. It holds all runs of this state directory: their releases all come from the same data, so they add up. Rounds
without differential privacy are not in it, since no epsilon bounds them. Nothing of it is ever sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fedpatch.shared.app.files import read_state, refusals_of, seal, unseal, write_atomic
from fedpatch.shared.errors import StateError
from fedpatch.shared.privacy.skellam import Release
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.field_types import Count

ACCOUNT_NAME = "privacy-ledger"
_LINE = b"fedpatch privacy ledger 1\n"

NoiseMultiplier = Annotated[float, Meta(gt=0.0, le=1e9)]


@dataclass(frozen=True)
class NoisyRounds:
    """Rounds with the same noise; `steps` as in shared.privacy.skellam.Release."""

    noise_multiplier: NoiseMultiplier
    rounds: Count
    steps: Count = 0


@dataclass(frozen=True)
class RunAccount:
    """The account of one run.

    Attributes:
        fleet: Fleet of its coordinator.
        run: Name of the run.
        task: Name of its task.
        noisy: Its rounds, by noise.
        last_update: Digest of the update that was counted last.
    """

    fleet: str
    run: str
    task: str
    noisy: tuple[NoisyRounds, ...] = ()
    last_update: str = ""

    @property
    def rounds(self) -> int:
        """All its rounds."""
        return sum(one.rounds for one in self.noisy)

    @property
    def releases(self) -> Counter[Release]:
        """Its rounds by their noise."""
        return Counter({Release(one.noise_multiplier, one.steps): one.rounds for one in self.noisy})

    def with_round(self, update: str, release: Release) -> RunAccount:
        """Return the account with one more round, unless its update was counted last."""
        if update == self.last_update:
            return self
        counts = self.releases + Counter([release])
        noisy = tuple(NoisyRounds(one.noise_multiplier, counts[one], one.steps) for one in sorted(counts))
        return replace(self, noisy=noisy, last_update=update)


@dataclass(frozen=True)
class _Content:
    runs: tuple[RunAccount, ...] = field(default=())


learn_types(_Content)


class DevicePrivacyAccount:
    """The account of one state directory; `runs` are its accounts, the latest last.

    Args:
        directory: State directory of the agent.

    Raises:
        StateUnreadable: The account cannot be read now.
        StateError: It is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / ACCOUNT_NAME
        self.runs = self._read()

    def releases(self) -> Mapping[Release, int]:
        """Return all rounds in this account by their noise."""
        return sum((one.releases for one in self.runs), Counter[Release]())

    def count(self, fleet: str, run: str, task: str, update: str, release: Release) -> None:
        """Count the round of an update durably; the same update counts once until it is committed.

        Args:
            fleet: Fleet of the coordinator.
            update: Digest of the update.
            release: Noise of the round.

        Raises:
            StateError: The disk refused; the update must not be offered.
        """
        known = next((one for one in self.runs if (one.fleet, one.run) == (fleet, run)), RunAccount(fleet, run, task))
        account = known.with_round(update, release)
        if account == known:
            return
        self._write((*(one for one in self.runs if one is not known), account))

    def committed(self, fleet: str, run: str) -> None:
        """Note durably that a run has taken the update that was counted last: offered again, it counts again.

        The coordinator asks again for a committed update only if it has lost the update. It then makes another release.

        Raises:
            StateError: The disk refused.
        """
        known = next((one for one in self.runs if (one.fleet, one.run) == (fleet, run)), None)
        if known is not None and known.last_update:
            self._write(tuple(replace(one, last_update="") if one is known else one for one in self.runs))

    def _write(self, runs: tuple[RunAccount, ...]) -> None:
        with refusals_of(self._path):
            write_atomic(self._path, seal(_LINE, msgspec.json.encode(_Content(runs))))
        self.runs = runs

    def _read(self) -> tuple[RunAccount, ...]:
        try:
            data = read_state(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        try:
            return msgspec.json.decode(unseal(self._path, _LINE, data, "a privacy account"), type=_Content).runs
        except (StateError, ValueError, RecursionError) as error:
            raise StateError(
                f"{self._path}: cannot be read ({error}); it holds the spent privacy, so restore it from a copy, or "
                "move it away to count from zero"
            ) from error
