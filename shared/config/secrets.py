"""Secrets from environment variables, which no started process inherits."""

from __future__ import annotations

import re
from collections.abc import MutableMapping

# Of each settings class: its `env_prefix` and the name of its secret in capitals (tests/shared/config/test_secrets.py).
_SECRET = re.compile(r"FEDPATCH_([A-Z]+_)*PASSWORD")


def drop_secrets(environ: MutableMapping[str, str]) -> None:
    """Takes the secrets of all programs out of `environ`, once the settings have them.

    Training, which runs a task's code, a program that asks a UPS and the devices of a demo are children of ours.
    """
    for variable in [one for one in environ if _SECRET.fullmatch(one)]:
        del environ[variable]


def pop_password(environ: MutableMapping[str, str]) -> str | None:
    """The coordinator's, for commands that take it by itself; then as `drop_secrets`. An empty one is none."""
    password = environ.get("FEDPATCH_PASSWORD") or None
    drop_secrets(environ)
    return password
