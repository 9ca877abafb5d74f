"""The file of a member's own key: whether it may be used, or is open to other users."""

from __future__ import annotations

from pathlib import Path

from fedpatch.shared.app.file_systems import remedy_of_mode
from fedpatch.shared.config.secret_file import forbidden_mode

ENROL = "enrol this device (fedpatch-agent enrol FILE), or correct cert_file and key_file"


def key_problem(key_file: Path, remedy: str = ENROL) -> tuple[str, str] | None:
    """Return why a key file must not be used, and the remedy (`remedy` for an absent file); None if it may be used."""
    try:
        mode = key_file.stat().st_mode & 0o777
    except OSError as error:
        return f"{key_file}: {error.strerror}", remedy
    # A user who can read the key can connect as its owner.
    if mode & forbidden_mode(key_file):
        problem = f"{key_file} is open to other users (mode {mode:04o}), who could pass for us"
        return problem, remedy_of_mode(key_file, f"chmod 600 {key_file}")
    return None
