"""The list of revoked certificates with the highest number that this device has seen: file `revocations.bin`."""

from __future__ import annotations

from pathlib import Path

from fedpatch.shared.app.files import read_state, refusals_of, seal, unseal, write_atomic

REVOCATIONS_FILE = "revocations.bin"
_LINE = b"fedpatch revocations 1\n"


class RevocationFile:
    """One file with the list in DER.

    Args:
        directory: State directory, which exists.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / REVOCATIONS_FILE

    def load(self) -> bytes:
        """Return the list; empty without a file.

        Raises:
            StateError: The file is damaged or cannot be read; the list may be whole, and stays.
        """
        try:
            data = read_state(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        return bytes(unseal(self.path, _LINE, data, "a list of revoked certificates"))

    def save(self, der: bytes) -> None:
        """Write the list. Raises StateError: then no round may begin with it."""
        with refusals_of(self.path):
            write_atomic(self.path, seal(_LINE, der))
