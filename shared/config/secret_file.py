"""Files that hold a secret: which modes they may have, and the secret on their one line."""

from __future__ import annotations

import os
from pathlib import Path

from fedpatch.shared.app.file_systems import remedy_of_mode
from fedpatch.shared.app.files import OPEN_TO_OTHERS, remedy_to_read
from fedpatch.shared.errors import UsageError

# systemd gives its service access to a credential by an ACL, whose mask appears as rights of an empty group.
_SHOWN_BY_SYSTEMD = 0o040


def forbidden_mode(path: Path) -> int:
    """Return the mode bits that a secret's file must not have; a systemd credential may show rights of a group."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    of_systemd = directory is not None and path.absolute().parent == Path(directory)
    return OPEN_TO_OTHERS & ~_SHOWN_BY_SYSTEMD if of_systemd else OPEN_TO_OTHERS


def read_secret(path: Path, kind: str, noun: str, remedy: str, most_bytes: int = 4096) -> str:
    """Return the secret in a file: one line of UTF-8, without its end.

    Args:
        kind: The kind of file, as messages name it.
        noun: The kind of secret, as messages name it.
        remedy: The remedy for a file that is unusable.

    Returns:
        The secret, which has 1 character or more.

    Raises:
        UsageError: The file is unusable, or others may read it. The message never has its content.

    Example:
        >>> read_secret(Path("absent"), "token file", "token", "make one")
        Traceback (most recent call last):
            ...
        fedpatch.shared.errors.UsageError: token file absent: No such file or directory; make one
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise UsageError(f"{kind} {path}: {error.strerror or error}; {remedy_to_read(error, path, remedy)}") from None
    if mode & forbidden_mode(path):
        raise UsageError(
            f"{kind} {path} is open to other users (mode {mode:04o}); {remedy_of_mode(path, f'chmod 600 {path}')}, and choose "
            f"another {noun}"
        )
    try:
        text = data.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"{kind} {path}: is not UTF-8 text; {remedy}") from None
    if not text or len(data) > most_bytes or any(char in text for char in "\n\r\0"):
        raise UsageError(f"{kind} {path}: holds no {noun} on one line; {remedy}")
    return text
