"""The downloads of a job on this device: files, chunks by subscription or by URL, and the version of the model that is held."""

from __future__ import annotations

import logging
from pathlib import Path

from fedpatch.device_agent.job.job_effects import DropHeldModel, StartDownload, StopDownload, WriteChunk
from fedpatch.device_agent.job.job_events import ChunkReceived, DownloadByBroker, DownloadStarted, JobEvent
from fedpatch.device_agent.job.training_messages import Downloaded
from fedpatch.device_agent.runtime.model_fetcher import ChunkFetched, FetchEvent, ModelFetch, ModelFetcher
from fedpatch.device_agent.runtime.presence import AgentLink
from fedpatch.device_agent.runtime.traffic_count import TrafficCount
from fedpatch.device_agent.state.download_files import Downloads, MemoryBlob
from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY, ModelCache
from fedpatch.device_agent.state.storage_check import DOWNLOADS
from fedpatch.device_agent.telemetry.vitals import RoundTimes
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire import topics

_log = logging.getLogger("fedpatch.agent")


class ModelDownloads:
    """Performs the effects of downloads.

    Args:
        fleet: Name of the fleet.
        link: Connection to the broker.
        directory: State directory.
        fetcher: Fetches models by URL; None where they come from the broker only.
        traffic: Counts what the fetches move.
        times: Durations of rounds, and bytes of models by way.
    """

    def __init__(
        self,
        fleet: str,
        link: AgentLink,
        directory: Path,
        fetcher: ModelFetcher | None,
        traffic: TrafficCount,
        times: RoundTimes,
    ) -> None:
        self._fleet = fleet
        self._link = link
        self._directory = directory / DOWNLOADS
        self._fetcher = fetcher
        self._traffic = traffic
        self._times = times
        self._files: Downloads | None = None
        self._fetch: ModelFetch | None = None
        self._in_memory: dict[str, MemoryBlob] = {}
        self._held = ModelCache(directory / HELD_DIRECTORY)
        self._held_by_training = (
            ""  # the version that the training process has in memory; "" where only the disk has one
        )

    @property
    def held_version(self) -> str:
        """Digest of the global model that this device holds, "" for none."""
        return self._held_by_training or self._held.version()

    def model_held(self, version: str) -> None:
        """Note the version of the global model that the training process has in memory; "" for a new process."""
        self._held_by_training = version

    def drop_held(self, effect: DropHeldModel) -> None:
        """Forget the held version."""
        _log.warning("%s; downloading the whole model", effect.why)
        self._held_by_training = ""
        self._held.forget()

    def start(self, effect: StartDownload) -> list[JobEvent]:
        """Open files, and begin a fetch or subscribe."""
        self.end(keep=True)
        self._files = Downloads(self._directory, effect.blobs, self._in_memory)
        have = self._files.have
        self._fetch = None if self._fetcher is None else self._fetcher.begin(effect.blobs, have)
        if self._fetch is None:
            self._link.subscribe(*self._filters(self._files))
        return [DownloadStarted(have, by_url=self._fetch is not None)]

    def stop(self, effect: StopDownload) -> None:
        """Take no more chunks for now, and keep those on the disk."""
        self.end(keep=True)

    def write(self, effect: WriteChunk) -> None:
        """Write a chunk, if a download runs."""
        if self._files is None:
            return
        self._files.write(effect.chunk)
        if self._fetch is not None:  # else the link counts
            self._traffic.moved_beside(Traffic(received_bytes=len(effect.chunk.data)))
        self._times.downloaded["mqtt" if self._fetch is None else "url"] += len(effect.chunk.data)

    def fetched(self, event: FetchEvent) -> list[JobEvent]:
        """Take an event of a fetch; of a stopped fetch, only count the bytes."""
        current = event.fetch is self._fetch
        if isinstance(event, ChunkFetched):
            event.fetch.taken()
            if current:
                return [ChunkReceived(event.chunk)]
            self._traffic.moved_beside(Traffic(received_bytes=len(event.chunk.data)))
            return []
        self._traffic.moved_beside(Traffic(received_bytes=event.wasted_bytes))
        if not current or not event.problem or self._files is None:
            return []
        self._fetch = None
        _log.warning("%s; downloading the missing chunks by MQTT", event.problem)
        self._link.subscribe(*self._filters(self._files))
        return [DownloadByBroker()]

    def verified(self) -> bool:
        """Take no more chunks, and return whether the bytes are those of the manifests; damaged files are deleted."""
        assert self._files is not None
        self._link.unsubscribe(*self._filters(self._files))
        places = self._end_fetch()
        if self._files.verified():
            return True
        # The job has no URL of the model, so the next download uses MQTT.
        origin = f"{places} has not the bytes of the manifest" if places else "what was downloaded is damaged"
        _log.warning("%s (SHA-256 differs); downloading the global model again, by MQTT", origin)
        self.end()
        return False

    def blob(self, digest: str) -> Downloaded:
        """Return the downloaded blob for the training process."""
        assert self._files is not None
        return self._files.blob(digest)

    def end(self, *, keep: bool = False) -> None:
        """End the download, if there is one; its files are deleted unless `keep`."""
        self._end_fetch()
        files, self._files = self._files, None
        if files is None:
            return
        self._link.unsubscribe(*self._filters(files))
        if keep:
            files.close()
        else:
            files.discard()

    def _end_fetch(self) -> str:
        """Stop the current fetch; return its URLs for messages, "" without one."""
        fetch, self._fetch = self._fetch, None
        if fetch is None:
            return ""
        fetch.stop()
        return fetch.places

    def _filters(self, files: Downloads) -> tuple[str, ...]:
        return tuple(topics.model_chunks_filter(self._fleet, digest) for digest in files.have)
