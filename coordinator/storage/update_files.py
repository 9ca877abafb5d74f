"""The files of committed updates, until their round is aggregated.

    updates/000013/pi-07.fp     the packed update of a device

Each has a line with the format, the SHA-256 of the content, and the content. The content is durable when `store_update`
returns, the name after `sync_updates`. Names with further parts are no updates, so a later version may add such names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import BlobReader, Place, blobs_at, require_sealed, write_sealed
from fedpatch.shared.wire.topics import check_name

_UPDATE = b"fedpatch update 1\n"
_UPDATES = "updates"
_SUFFIX = ".fp"


def store_update(place: Place, round: int, device: str, blob: bytes, digest: str = "") -> str:
    """Save the packed update of a device; an existing one is replaced. Its bytes are then durable; its name may not be.

    Args:
        place: Blob store of the run, or its directory.
        blob: The packed update.
        digest: Its SHA-256 in hex, if it is known; this saves a second computation.

    Returns:
        Its key.

    Raises:
        StateError: The store refused the write.
    """
    key = update_key(round, device)
    write_sealed(blobs_at(place), key, _UPDATE, blob, bytes.fromhex(digest), durable_name=False)
    return key


def sync_updates(place: Place, round: int) -> None:
    """Flush the names of a round's updates, all with one wait for the disk; raise StateError if the disk refuses."""
    blobs_at(place).sync(_round_folder(round))


def load_update(place: Path | BlobReader, round: int, device: str) -> bytes:
    """Return the packed update of a device.

    Args:
        place: Blob store of the run, or its directory.

    Raises:
        StateError: The update is missing or damaged.
        StateUnreadable, StoreUnavailable: It cannot be read now.
    """
    return bytes(require_sealed(blobs_at(place), update_key(round, device), _UPDATE, "an update"))


def drop_round(place: Place, round: int) -> None:
    """Delete the updates of a round."""
    blobs_at(place).delete(f"{_round_folder(round)}/")


def drop_updates(place: Place, updates: Iterable[tuple[int, str]]) -> None:
    """Delete updates, each given by its round and its device; a round's folder may still get other updates."""
    blobs_at(place).delete(*(update_key(round, device) for round, device in updates))


def kept_rounds(place: Place) -> list[int]:
    """Return the numbers of the rounds that have updates in the store."""
    return sorted(int(name[:-1]) for name in blobs_at(place).list(_UPDATES) if re.fullmatch(r"\d+/", name))


def kept_devices(place: Place, round: int) -> list[str]:
    """Return the devices that have an update of a round in the store."""
    names = blobs_at(place).list(_round_folder(round))
    return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]


def update_key(round: int, device: str) -> str:
    """Return the key of a device's update."""
    # An unchecked name could be a path out of the folder.
    return f"{_round_folder(round)}/{check_name('device', device)}{_SUFFIX}"


def _round_folder(round: int) -> str:
    return f"{_UPDATES}/{round:06d}"
