"""Passwords in the environment are there for us, and not for the processes that we start."""

from __future__ import annotations

from fedpatch.shared.config.secrets import drop_secrets, pop_password


def test_no_child_inherits_a_password():
    kept = {"PATH": "/bin", "FEDPATCH_PASSWORD_FILE": "/secret", "FEDPATCH_BROKER": "b", "PASSWORD": "somebody's"}
    environ = {**kept, "FEDPATCH_PASSWORD": "a", "FEDPATCH_AGENT_PASSWORD": "b"}
    drop_secrets(environ)
    assert environ == kept


def test_the_coordinators_is_taken_out_by_those_who_use_it():
    environ = {"FEDPATCH_PASSWORD": "a"}
    assert [pop_password(environ), pop_password(environ)] == ["a", None]
    assert pop_password({"FEDPATCH_PASSWORD": ""}) is None
