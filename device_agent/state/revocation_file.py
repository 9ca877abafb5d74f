"""The list of revoked certificates with the highest number that this device has seen: file `revocations.bin`."""

from __future__ import annotations

from pathlib import Path

from fedpatch.shared.app.files import read_state, refusals_of, seal, unseal, write_atomic
from fedpatch.shared.errors import StateError

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
            StateError: The file is damaged, or cannot be read now (StateUnreadable); it stays.
        """
        try:
            data = read_state(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        try:
            return bytes(unseal(self.path, _LINE, data, "a list of revoked certificates"))
        except StateError as error:
            raise StateError(
                f"{error}; restore {REVOCATIONS_FILE} from a copy, or delete it: then the coordinator's next list counts, even "
                "an old one"
            ) from error

    def save(self, der: bytes) -> None:
        """Write the list. Raises StateError: then no round may begin with it."""
        with refusals_of(self.path):
            write_atomic(self.path, seal(_LINE, der))
