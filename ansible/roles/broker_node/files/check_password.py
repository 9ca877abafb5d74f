"""Answers ejabberd's questions about passwords from a fleet's password file, which `fedpatch device add` writes.

ejabberd starts it as `check_password.py FILE`. A question is two bytes of length and `auth:USER:HOST:PASSWORD` or
`isuser:USER:HOST`; the answer is 1 or 0. A line of the file is `user:$7$ITERATIONS$SALT$HASH`, as for mosquitto: PBKDF2 with
HMAC-SHA-512, salt and hash in base64. The file is read for each question, so that a revoked password is refused at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import sys
from pathlib import Path

# A client may send any bytes as its name and password.
_TEXT = ("utf-8", "surrogateescape")


def answer(question: str, lines: list[str]) -> bool:
    """Return whether the answer to a question is yes.

    Args:
        question: The question without its length; bytes other than UTF-8 are decoded with `surrogateescape`.
        lines: Lines of the password file.

    Returns:
        For `isuser` whether the user has a password, for `auth` whether the password is correct; False for other questions,
        and for `auth` if the user's line is damaged.

    Example:
        >>> answer("isuser:pi-1:kitchen", ["pi-1:$7$101$AAAA$AAAA"])
        True
    """
    verb, user, _, password = (*question.split(":", 3), "", "")[:4]
    known = dict(line.split(":", 1) for line in lines if ":" in line).get(user)
    if known is None:
        return False
    if verb != "auth":
        return verb == "isuser"
    try:
        _, kind, iterations, salt, wanted = known.split("$")
        derived = hashlib.pbkdf2_hmac("sha512", password.encode(*_TEXT), base64.b64decode(salt), int(iterations))
        return kind == "7" and hmac.compare_digest(derived, base64.b64decode(wanted))
    except (ValueError, OverflowError):
        return False


def main() -> None:
    """Answer questions until the end of stdin."""
    while head := sys.stdin.buffer.read(2):
        question = sys.stdin.buffer.read(struct.unpack(">H", head)[0]).decode(*_TEXT)
        right = answer(question, Path(sys.argv[1]).read_text(*_TEXT).splitlines())
        sys.stdout.buffer.write(struct.pack(">HH", 2, right))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
