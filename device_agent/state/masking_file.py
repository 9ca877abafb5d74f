"""The state of the last masked round on disk: a device that restarts must give the same answers as before, and no others."""

from __future__ import annotations

import logging
from pathlib import Path

from fedpatch.device_agent.masking.masking_round import MaskingRound
from fedpatch.shared.app.files import read_state, refusals_of, seal, unseal, write_atomic
from fedpatch.shared.errors import StateError, WireError
from fedpatch.shared.wire.codec import from_bytes, to_bytes

MASKING_FILE = "masking.bin"
_LINE = b"fedpatch masking 1\n"

log = logging.getLogger("fedpatch.agent")


class MaskingFile:
    """One file, 0600, that holds the secrets of the last masked round of this device.

    Args:
        directory: State directory, which exists.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / MASKING_FILE
        self._written = b""

    def load(self) -> MaskingRound | None:
        """Return the state; None without a file.

        A damaged file is deleted, since its secrets are useless: the device then takes no further part in that round.

        Raises:
            StateError: The file is there and cannot be read (StateUnreadable: now); it may be whole, and stays.
        """
        try:
            data = read_state(self.path)
        except FileNotFoundError:
            return None
        try:
            state = self._decode(data)
        except (StateError, WireError) as error:
            log.error("%s: the state of the last masked round is damaged, and is deleted (%s)", self.path, error)
            self.delete()
            return None
        self._written = data
        return state

    def problem(self) -> str:
        """Return the damage of the file; "" for none. Nothing is changed. StateError as of `load`."""
        try:
            data = read_state(self.path)
        except FileNotFoundError:
            return ""
        try:
            self._decode(data)
        except (StateError, WireError) as error:
            return str(error)
        return ""

    def _decode(self, data: bytes) -> MaskingRound:
        return from_bytes(bytes(unseal(self.path, _LINE, data, "the state of a masked round")), MaskingRound)

    def save(self, state: MaskingRound) -> None:
        """Write the state unless it is on the disk already. Raises StateError: then nothing may be sent."""
        data = seal(_LINE, to_bytes(state))
        if data == self._written:
            return
        with refusals_of(self.path):
            write_atomic(self.path, data)
        self._written = data

    def delete(self) -> None:
        """Delete the file. Raises StateError."""
        self._written = b""
        with refusals_of(self.path):
            self.path.unlink(missing_ok=True)
