"""The password file of mosquitto, for brokers without client certificates. It holds hashes only.

A line is `user:$7$ITERATIONS$SALT$HASH`: PBKDF2 (RFC 8018) with HMAC-SHA-512, salt and hash in base64, as mosquitto_passwd
writes it. Passwords have 256 random bits and cannot be guessed, so more iterations would gain nothing. The 101 iterations of
mosquitto keep a small broker responsive when a whole fleet reconnects.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from pathlib import Path

from fedpatch.coordinator.pki.issued_certificates import PASSWORD, Index
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.errors import StateError

PASSWORDS_NAME = "passwords"
ITERATIONS = 101
SALT_BYTES = 12


def new_password() -> str:
    """Return 256 random bits as letters, digits, - and _."""
    return secrets.token_urlsafe(32)


def password_line(user: str, password: str, salt: bytes | None = None) -> str:
    """Return the line of a user, without line end.

    Args:
        user: User name at the broker.
        password: The password, of which the line has a hash.
        salt: SALT_BYTES bytes; None: random ones.
    """
    salt = salt or secrets.token_bytes(SALT_BYTES)
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    parts = (str(ITERATIONS), *(base64.b64encode(one).decode() for one in (salt, derived)))
    return f"{user}:$7${'$'.join(parts)}"


def password_file(ca_directory: Path) -> Path:
    """Path of the fleet's password file."""
    return ca_directory / "broker" / PASSWORDS_NAME


def keep_passwords(ca_directory: Path, index: Index, *new_lines: str) -> Path | None:
    """Write the password file: `new_lines` replace old lines of their users, lines of revoked users go.

    Returns:
        Its path; None where the fleet has no passwords.
    """
    path = password_file(ca_directory)
    allowed = {one.name for one in index.entries if one.kind == PASSWORD and not one.revoked_at}
    try:
        before = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        before = []
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{path}: cannot be read: {error}; move it away and give the devices new passwords") from error
    lines = {line.partition(":")[0]: line for line in (*before, *new_lines) if line}
    kept = [line for user, line in sorted(lines.items()) if user in allowed]
    if not kept and not before:
        return None
    if kept != before:
        with refusals_of(path):
            path.parent.mkdir(exist_ok=True, mode=0o700)
            write_atomic(path, "".join(f"{line}\n" for line in kept).encode())
    return path
