"""The global model on its way to the device: fetched, stopped for a while, and gone on with where it was."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import Effect, StartDownload
from fedpatch.shared.wire.chunked_transfer import Chunk, Download
from fedpatch.shared.wire.messages import Need


class ModelDownload:
    """What is fetched is said by `way`. Chunks are taken between `begun` and `stop`, and none before or after."""

    def __init__(self, way: DownloadPlan) -> None:
        self.way = way
        self._download: Download | None = None

    def fetch(self) -> StartDownload:
        """What is to be done first, and again after a stop; then `begun`."""
        self._download = None
        return StartDownload(self.way.blobs)

    def begun(self, have: Mapping[str, Collection[int]], now: float) -> None:
        """Room is made; `have` are chunks from before, by the digest of their blob."""
        self._download = Download(self.way.blobs, now, have=have)

    def stop(self) -> None:
        """Nothing more is taken for now."""
        self._download = None

    def goes_by(self, way: DownloadPlan, now: float) -> list[Effect]:
        """The coordinator is back, and offers `way` to the same model.

        Its chunks are on the broker again: what is missing need not wait for a pause that has grown long.
        """
        if way.blobs == self.way.blobs:
            if self._download is not None:
                self._download = Download(way.blobs, now, have=self._download.have)
            return []
        self.way = way
        return [] if self._download is None else [self.fetch()]

    def take(self, chunk: Chunk, now: float) -> bool:
        """True when the chunk is new and wanted: the caller stores it."""
        return self._download is not None and self._download.take(chunk, now)

    @property
    def complete(self) -> bool:
        """All chunks are here (their SHA-256 is still to be checked)."""
        return self._download is not None and self._download.complete

    def reconnected(self, now: float) -> None:
        """The link is back: what was in flight may be lost."""
        if self._download is not None:
            self._download.on_reconnect(now)

    def tick(self, now: float) -> list[Need]:
        """What to ask for."""
        return self._download.tick(now) if self._download is not None else []

    def next_deadline(self) -> float | None:
        """When `tick` has something to say."""
        return self._download.next_deadline() if self._download is not None else None
