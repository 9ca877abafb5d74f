"""The bases from which this device has offered a masked update, on disk: it offers none again from the same values.

One sealed file of SHA-256 digests, 32 bytes for each masked round, written before the offer leaves. Digests are kept for ever:
a bound would let a coordinator push an old base out of the file with rounds from other bases.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fedpatch.shared.app.files import read_state, refusals_of, seal, unseal, write_atomic
from fedpatch.shared.errors import StateError, StateUnreadable

OFFERED_BASES_FILE = "masked-bases"
DIGEST_BYTES = 32
_LINE = b"fedpatch masked bases 1\n"

_log = logging.getLogger("fedpatch.agent")


class OfferedBases:
    """The record of one state directory.

    Args:
        directory: State directory, which exists.

    Example:
        >>> from tempfile import mkdtemp
        >>> bases = OfferedBases(Path(mkdtemp()))
        >>> bases.add("ec" * 32)
        >>> bases.load() == {"ec" * 32}
        True
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / OFFERED_BASES_FILE
        self._known: dict[str, None] | None = None

    def load(self) -> frozenset[str] | None:
        """Return the digests, as 64 hexadecimal digits; None if the record is damaged, which is logged with the remedy.

        Raises:
            StateUnreadable: The file is there and cannot be read now.
        """
        try:
            self._known = dict.fromkeys(self._read())
        except StateUnreadable:
            raise
        except StateError as error:
            _log.error("masking: every masked round is declined: %s", error)
            return None
        return frozenset(self._known)

    def add(self, digest: str) -> None:
        """Write a digest durably, unless it is in the record. Raises StateError: then no update from it may be offered."""
        known = dict.fromkeys(self._read()) if self._known is None else self._known
        if digest in known:
            return
        known = {**known, digest: None}
        with refusals_of(self.path):
            write_atomic(self.path, seal(_LINE, b"".join(map(bytes.fromhex, known))))
        self._known = known

    def check(self) -> None:
        """Raise StateError, with the remedy, if the record is damaged or cannot be read now; an absent one is in order."""
        self._read()

    def _read(self) -> list[str]:
        try:
            return self._decode(read_state(self.path))
        except FileNotFoundError:
            return []

    def _decode(self, data: bytes) -> list[str]:
        try:
            content = bytes(unseal(self.path, _LINE, data, "a record of masked bases"))
            if len(content) % DIGEST_BYTES:
                raise StateError(f"{self.path}: {len(content)} bytes are no list of digests")
        except StateError as error:
            raise StateError(
                f"{error}; restore {OFFERED_BASES_FILE} from a copy, or move it away: then an update from an earlier base may "
                "leave again"
            ) from error
        return [content[at : at + DIGEST_BYTES].hex() for at in range(0, len(content), DIGEST_BYTES)]
