"""The row of an update that is on the disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StoredUpdate:
    """An update on disk (coordinator.storage.checkpoint).

    Attributes:
        round: Number of the round.
        device: The device.
        digest: SHA-256 of the packed update.
        raw_bytes: Size of the unpacked update.
        num_examples: Examples that it reports.
        encoding: Its encoding.
    """

    round: int
    device: str
    digest: str
    raw_bytes: int
    num_examples: int
    encoding: str
