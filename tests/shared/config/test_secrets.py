"""Passwords in the environment are not inherited by the processes that we start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedpatch.shared.config.fields import Settings, settings_of
from fedpatch.shared.config.secrets import drop_secrets, pop_password
from scripts.reference.configuration import COMMANDS

ROOTS: tuple[type[Settings], ...] = (Settings, *COMMANDS)


def secrets_of(cls: type[Settings]) -> Iterator[str]:
    """Yield the variables of the secrets of a settings class and of its subclasses, without classes of tests."""
    if cls.__module__.startswith("fedpatch."):
        yield from (f"{cls.env_prefix}{one.name.upper()}" for one in settings_of(cls) if one.rules.secret)
    for derived in cls.__subclasses__():
        yield from secrets_of(derived)


def test_no_child_inherits_a_password():
    kept = {"PATH": "/bin", "FEDPATCH_PASSWORD_FILE": "/secret", "FEDPATCH_BROKER": "b", "PASSWORD": "somebody's"}
    environ = {**kept, "FEDPATCH_PASSWORD": "a", "FEDPATCH_AGENT_PASSWORD": "b"}
    drop_secrets(environ)
    assert environ == kept


@pytest.mark.parametrize("variable", sorted({one for cls in ROOTS for one in secrets_of(cls)}))
def test_no_child_inherits_the_secret_of_any_settings_class(variable):
    environ = {variable: "a"}
    drop_secrets(environ)
    assert not environ


def test_the_coordinators_is_taken_out_by_those_who_use_it():
    environ = {"FEDPATCH_PASSWORD": "a"}
    assert [pop_password(environ), pop_password(environ)] == ["a", None]
    assert pop_password({"FEDPATCH_PASSWORD": ""}) is None
