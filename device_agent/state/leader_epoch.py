"""The highest epoch of a fleet's leaders that this device has seen: file `leader-epoch`, one line FLEET EPOCH.

A coordinator of `fedpatch run --standby` writes its epoch into each request. A coordinator that was paused while another took
over has a lower epoch, and this device ignores it, also after a restart. Requests without an epoch are admitted: their
coordinator has no standby.
"""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec import UnsetType

from fedpatch.shared.app.files import read_state, write_atomic

LEADER_EPOCH_FILE = "leader-epoch"

_log = logging.getLogger("fedpatch.agent")


class LeaderEpoch:
    """The highest epoch of the leaders of one fleet.

    Args:
        directory: State directory of the device.
        fleet: Name of the fleet.

    Raises:
        StateUnreadable: The file cannot be read now: without it a former leader would be obeyed.

    Example:
        >>> from tempfile import mkdtemp
        >>> leader = LeaderEpoch(Path(mkdtemp()), "home")
        >>> leader.admits(7), leader.admits(6)
        (True, False)
    """

    def __init__(self, directory: Path, fleet: str) -> None:
        self._file = directory / LEADER_EPOCH_FILE
        self._fleet = fleet
        self.highest = self._read()

    def admits(self, epoch: int | UnsetType) -> bool:
        """Return whether a coordinator with this epoch may lead; a higher epoch is written to the disk first."""
        if isinstance(epoch, UnsetType):
            return True
        if epoch < self.highest:
            _log.warning("a coordinator of epoch %d is ignored: epoch %d leads the fleet", epoch, self.highest)
            return False
        if epoch > self.highest:
            self.highest = epoch
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self._file, f"{self._fleet} {epoch}\n".encode())
            except OSError as error:
                _log.warning("%s: cannot be written (%s); known until this agent ends", self._file, error.strerror)
        return True

    def _read(self) -> int:
        try:
            fleet, epoch = _read_line(self._file)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return 0
        return epoch if fleet == self._fleet else 0


def leader_problem(directory: Path) -> str:
    """Return the damage of the file in words; "" for none. Raises StateUnreadable as LeaderEpoch does."""
    file = directory / LEADER_EPOCH_FILE
    try:
        _read_line(file)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except ValueError:
        return f"{file}: is damaged"
    return ""


def _read_line(file: Path) -> tuple[str, int]:
    fleet, epoch = read_state(file).decode("ascii").split()
    return fleet, max(0, int(epoch))
