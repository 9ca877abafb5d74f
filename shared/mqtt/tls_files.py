"""Which files say whom to trust at a broker, and who we are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the CAs to trust (None: the system's); our own certificate and its key (None: we have none).

    Both may be in one file, so that they change in one rename; then the two paths are the same.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def paths(self) -> tuple[Path, ...]:
        """Those that there are, each once."""
        return tuple(dict.fromkeys(one for one in (self.ca_file, self.cert_file, self.key_file) if one is not None))
