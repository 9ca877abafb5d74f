"""Removal of secrets from the environment, so that no child process inherits them."""

from __future__ import annotations

import re
from collections.abc import MutableMapping

# Each settings class's `env_prefix` plus the name of its secret in capitals (tests/shared/config/test_secrets.py).
_SECRET = re.compile(r"FEDPATCH_([A-Z]+_)*PASSWORD")


def drop_secrets(environ: MutableMapping[str, str]) -> None:
    """Remove the secrets of all programs from `environ`, once the settings have them.

    Child processes would inherit them: training, which runs a task's code, a program that queries a UPS, a demo's devices.
    """
    for variable in [one for one in environ if _SECRET.fullmatch(one)]:
        del environ[variable]


def pop_password(environ: MutableMapping[str, str]) -> str | None:
    """Return the coordinator's password, None if empty, for commands that read only this one; then do as `drop_secrets`."""
    password = environ.get("FEDPATCH_PASSWORD") or None
    drop_secrets(environ)
    return password
