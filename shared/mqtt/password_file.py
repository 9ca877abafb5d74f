"""The password for a broker, where it lies in a file: on no command line, and in no environment that others could see."""

from __future__ import annotations

import os
from pathlib import Path

from shared.broker_settings import BrokerSettings
from shared.errors import UsageError
from shared.files import OPEN_TO_OTHERS

MAX_BYTES = 4096

# Whoever can read a password can be whoever it belongs to.
# systemd lets its service in by an ACL, whose mask shows as the rights of a group that nobody is in.
_SHOWN_BY_SYSTEMD = 0o040


def password_of(settings: BrokerSettings) -> str | None:
    """The password that the settings hold or name a file for; None where they do neither.

    UsageError, with the mend and never with what is in it, for a file that cannot be used or that others may read.
    """
    if settings.password_file is None:
        return settings.password
    return read_password(settings.password_file)


def read_password(path: Path) -> str:
    """What is in `path`, one line of UTF-8, without the end of the line."""
    mend = "put the password there on one line: install -m 0600 /dev/stdin " + str(path)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"password_file {path}: {error.strerror or error}; {mend}") from None
    if mode & _allowed_to_nobody(path):
        raise UsageError(
            f"password_file {path} is open to other users (mode {mode:04o}); chmod 600 {path}, and choose another password"
        )
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"password_file {path}: is not UTF-8 text; {mend}") from None
    if not text or len(data) > MAX_BYTES or any(char in text for char in "\n\r\0"):
        raise UsageError(f"password_file {path}: holds no password on one line; {mend}")
    return text


def _allowed_to_nobody(path: Path) -> int:
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    of_systemd = given is not None and path.absolute().parent == Path(given)
    return OPEN_TO_OTHERS & ~_SHOWN_BY_SYSTEMD if of_systemd else OPEN_TO_OTHERS
