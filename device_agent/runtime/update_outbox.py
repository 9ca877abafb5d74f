"""The update that waits to be committed: on the disk, counted for the owner's privacy budget, sent in chunks."""

from __future__ import annotations

import logging
from pathlib import Path

from fedpatch.device_agent.job.job_effects import JobKey, SpoolUpdate
from fedpatch.device_agent.runtime.agent_ports import LimitsPort
from fedpatch.device_agent.state.download_files import cut_from_file
from fedpatch.device_agent.state.storage_check import SPOOL
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import Manifest

_log = logging.getLogger("fedpatch.agent")


class UpdateOutbox:
    """The update of the current work.

    Args:
        directory: State directory.
        limits: The owner's limits on what may leave the device.

    Attributes:
        spool: Files of the update and of a masked round's vector.
        vector: Manifest of the vector of a masked round before it is masked; None without one.
    """

    def __init__(self, directory: Path, limits: LimitsPort) -> None:
        self.spool = UpdateSpool(directory / SPOOL)
        self.vector: Manifest | None = None
        self._update: Manifest | None = None
        self._limits = limits

    def keep(self, effect: SpoolUpdate) -> None:
        """Count the update for the privacy budget, and note on disk that it waits."""
        known, self._update = self._update, effect.manifest
        if self._limits.privacy is not None:
            # Counted before the update can leave, so that a crash never loses the count.
            self._limits.privacy.count(effect.key, effect.request, effect.manifest)
        try:
            self.spool.save(Spooled(effect.key, effect.manifest, effect.request))
        except StateError as error:
            if known != effect.manifest:
                raise
            # The note of the former epoch remains; after a reboot the coordinator would have to request the update again.
            _log.warning("%s", error)

    def chunk(self, effect: SendChunk) -> Chunk | None:
        """Read a chunk of the update; None if there is none."""
        return None if self._update is None else cut_from_file(self.spool.update_path, self._update, effect.index)

    def forget(self) -> None:
        """The job has ended; its files stay until the round is closed."""
        self._update, self.vector = None, None

    def restore(self) -> Spooled | None:
        """Return the update that waited when the agent ended, if it may still leave; else delete it."""
        self.spool.committed()  # a note that is damaged is dropped
        spooled = self.spool.load()
        if spooled is None:
            return None
        if why := self._limits.why_not_send(spooled.request, spooled.manifest):
            _log.warning("the update of %s round %d is dropped: %s", spooled.key.run, spooled.key.round, why)
            self.spool.clear()
            return None
        try:
            if self._limits.privacy is not None:
                self._limits.privacy.count(spooled.key, spooled.request, spooled.manifest)
        except StateError as error:
            _log.error("the update of %s round %d is dropped: %s", spooled.key.run, spooled.key.round, error)
            self.spool.clear()
            return None
        _log.info("an update of %s round %d waits to be committed", spooled.key.run, spooled.key.round)
        self._update = spooled.manifest
        return spooled

    def committed(self, key: JobKey) -> None:
        """Note in the privacy budget that the update is committed."""
        if self._limits.privacy is None:
            return
        try:
            self._limits.privacy.committed(key.run)
        except StateError as error:
            _log.error(
                "privacy: the update of %s round %d would count once if it is asked for again: %s",
                key.run,
                key.round,
                error,
            )
