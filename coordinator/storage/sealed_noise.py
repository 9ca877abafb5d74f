"""The noise of an open round on the disk, and the book of releases.

    <run directory>/
        noise-000013.fp       the noise of round 13, until its checkpoint is saved
        privacy-book.fp       how often each device's updates were released

Noise is drawn from the operating system once a round, never from the run's seed. It is on the disk before it is used, and a
process that continues the round uses it again: a second draw would publish the same sum twice, and the mean of both has less
noise than the account says. It is deleted, durably, before the round's model is published, for who has it can take it off.

The book is written before the checkpoint, so a release never lacks in it. A round that a crash interrupted counts once; a round
that is repeated because its checkpoint is lost draws anew and counts again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from fedpatch.coordinator.aggregation.gaussian_noise import normals, random_bytes_for
from fedpatch.shared.app.checksummed_file import seal, unseal
from fedpatch.shared.app.files import refusals_of, sync_directory, write_atomic
from fedpatch.shared.errors import StateError
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.field_types import Count

BOOK = "privacy-book.fp"
_NOISE_LINE = b"fedpatch noise 1\n"
_BOOK_LINE = b"fedpatch privacy book 1\n"

DrawBytes = Callable[[int], bytes]


@dataclass(frozen=True)
class Draw:
    """The noise of a round: standard normal `values`, and the `digest` that names this draw."""

    values: Array
    digest: str


class SealedNoise:
    """The noise of one run's rounds.

    Args:
        directory: Directory of the run.
        draw_bytes: Source of random bytes; the operating system's if left out.

    Raises:
        StateError: The disk refuses; here and in each method.
    """

    def __init__(self, directory: Path, draw_bytes: DrawBytes | None = None) -> None:
        self._directory = directory
        self._draw_bytes = draw_bytes or os.urandom

    def of_round(self, round_number: int, size: int) -> Draw:
        """Return the noise of a round: the sealed one if there is one, else a new one, which is sealed first.

        Args:
            round_number: The open round.
            size: Number of values.

        Raises:
            StateError: The sealed noise is damaged or has another size.
        """
        path = self._path(round_number)
        with refusals_of(path):
            if not path.exists():
                values = normals(self._draw_bytes(random_bytes_for(size)), size)
                write_atomic(path, seal(_NOISE_LINE, values.astype("<f8").tobytes()))
            data = path.read_bytes()
        remedy = "remove the file: its round has released nothing, and draws new noise"
        try:
            content = bytes(unseal(path, _NOISE_LINE, data, "the noise of a round"))
        except StateError as error:
            raise StateError(f"{error}; {remedy}") from error
        if len(content) != 8 * size:
            raise StateError(f"{path}: has noise for {len(content) // 8} values, not for {size}; {remedy}")
        return Draw(np.frombuffer(content, "<f8").astype(np.float64), hashlib.sha256(content).hexdigest())

    def drop_until(self, round_number: int) -> None:
        """Delete the noise of this round and of earlier ones, whose models are saved, durably."""
        with refusals_of(self._directory):
            found = self._directory.glob("noise-[0-9]*.fp")
            over = [path for path in found if int(path.stem.partition("-")[2]) <= round_number]
            for path in over:
                path.unlink(missing_ok=True)
            if over:
                sync_directory(self._directory)

    def _path(self, round_number: int) -> Path:
        return self._directory / f"noise-{round_number:06d}.fp"


@dataclass(frozen=True)
class _Pages:
    """Content of the book: releases by device without the last draw, and the devices of the last draw."""

    earlier: dict[str, Count] = field(default_factory=dict)
    digest: str = ""
    devices: tuple[str, ...] = ()


class PrivacyBook:
    """The coordinator's account of one run: in how many releases each device's updates are.

    Args:
        directory: Directory of the run.

    Raises:
        StateError: The book is damaged, or the disk refuses.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / BOOK
        self._pages = self._read()

    @property
    def most_used(self) -> int:
        """The number of releases of the device that is in most of them; 0 before the first."""
        return max(_totals(self._pages).values(), default=0)

    def most_used_with(self, digest: str, devices: Iterable[str]) -> int:
        """Return `most_used` as it would be after `note` with the same arguments."""
        return max(_totals(self._noted(digest, devices)).values(), default=0)

    def note(self, digest: str, devices: Iterable[str]) -> None:
        """Count a release durably, before it is made.

        Args:
            digest: Name of its draw. The same draw counts once, for the devices of all its attempts.
            devices: Devices whose updates are in it.
        """
        pages = self._noted(digest, devices)
        if pages != self._pages:
            with refusals_of(self._path):
                write_atomic(self._path, seal(_BOOK_LINE, msgspec.msgpack.encode(pages)))
            self._pages = pages

    def _noted(self, digest: str, devices: Iterable[str]) -> _Pages:
        if digest == self._pages.digest:
            return replace(self._pages, devices=tuple(sorted({*self._pages.devices, *devices})))
        return _Pages(_totals(self._pages), digest, tuple(sorted(devices)))

    def _read(self) -> _Pages:
        with refusals_of(self._path):
            if not self._path.exists():
                return _Pages()
            data = self._path.read_bytes()
        remedy = "restore it from a copy, or start a new run: without it the epsilon of this run is unknown"
        try:
            return msgspec.msgpack.decode(unseal(self._path, _BOOK_LINE, data, "a privacy book"), type=_Pages)
        except (StateError, msgspec.DecodeError) as error:
            raise StateError(f"{self._path}: cannot be read ({error}); {remedy}") from error


def _totals(pages: _Pages) -> dict[str, int]:
    totals = dict(pages.earlier)
    for device in pages.devices:
        totals[device] = totals.get(device, 0) + 1
    return totals
