"""`fedpatch broker acl`: its rules are the table's, its members the CA's, and it warns of rules that hold for everybody."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.pki.certificate_authority import DEVICE, WATCHER, Authority
from fedpatch.shared.wire.topics import TOPICS, mosquitto_acl

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True).filter(lambda name: name != "coordinator")


def read_rules(text: str) -> set[tuple[str, str, str]]:
    """Every (user, access, filter) of an acl_file, where `readwrite` is two."""
    found, user = set(), ""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "user":
            user = rest
        elif word == "topic":
            access, _, topic = rest.partition(" ")
            found |= {(user, one, topic) for one in ("read", "write") if one in access}
    return found


def expected(fleet: str, members: dict[str, str]) -> set[tuple[str, str, str]]:
    """The same by the table: a device's own name stands where a topic has one, for others it is `+`."""
    found = set()
    for row in TOPICS:
        for user, party in members.items():
            own = user if party == "device" else "+"
            topic = row.pattern.format(fleet=fleet, device=own, digest="+", transfer="+", index="+")
            accesses = {"write": row.writer == party, "read": party in row.readers}
            found |= {(user, access, topic) for access, given in accesses.items() if given}
    return found


@given(fleet=NAMES, devices=st.sets(NAMES, max_size=5), watchers=st.sets(NAMES, max_size=3))
def test_the_file_says_what_the_table_says(fleet, devices, watchers):
    """For whatever members: no line more, no line less, and none without a user before it."""
    watchers -= devices
    members = {"coordinator": "coordinator"} | dict.fromkeys(devices, "device") | dict.fromkeys(watchers, "watcher")
    text = mosquitto_acl(fleet, devices=sorted(devices), watchers=sorted(watchers))
    assert read_rules(text) == expected(fleet, members)
    assert "pattern" not in text and not any(user == "" for user, _, _ in read_rules(text))


def test_the_members_are_those_that_the_ca_knows_and_has_not_revoked(fedpatch, tmp_path):
    """With certificate or password; more may be named beside them."""
    with Authority.create(tmp_path, "kitchen", now=time.time()) as authority:
        for device in ("pi-1", "pi-2", "gone"):
            authority.issue(DEVICE, device, now=time.time())
        authority.note_password(DEVICE, "pi-3")
        authority.issue(WATCHER, "ann", now=time.time())
        authority.revoke(DEVICE, "gone", now=time.time())
    ended = fedpatch("broker", "acl", "--ca-dir", tmp_path, "--device", "pi-4")
    assert (ended.code, ended.err) == (0, "")
    members = dict.fromkeys(("pi-1", "pi-2", "pi-3", "pi-4"), "device") | {
        "coordinator": "coordinator",
        "ann": "watcher",
    }
    assert read_rules(ended.out) == expected("kitchen", members)


def test_a_ca_without_devices_lets_nobody_in(fedpatch, tmp_path):
    """There is nobody yet; that is not the same as not to know."""
    Authority.create(tmp_path, "kitchen", now=time.time()).close()
    ended = fedpatch("broker", "acl", "--ca-dir", tmp_path)
    assert ended.err == "" and read_rules(ended.out) == expected("kitchen", {"coordinator": "coordinator"})


def test_rules_for_nobody_in_particular_are_warned_of(fedpatch):
    """They are patterns, which hold for every user; the file itself stays clean of the warning."""
    ended = fedpatch("broker", "acl", "--fleet", "kitchen")
    assert ended.code == 0 and "pattern read" in ended.out and "warning" not in ended.out
    assert "hold" not in ended.out and "--ca-dir or --device" in ended.err and len(ended.err.splitlines()) == 1


def test_the_same_members_have_rules_for_ejabberd(fedpatch):
    """Where nobody is named there are none: it knows no users by pattern alone."""
    ended = fedpatch("broker", "acl", "--fleet", "kitchen", "--device", "pi-1", "--ejabberd", "broker.lan")
    assert ended.code == 0 and 'user: ["pi-1@broker.lan"]' in ended.out and "access_publish" in ended.out
    ended = fedpatch("broker", "acl", "--fleet", "kitchen", "--ejabberd", "broker.lan")
    assert (ended.code, ended.out) == (2, "")


def test_it_must_be_clear_whose_rules_they_are(fedpatch, tmp_path):
    """No fleet, no CA, or the CA of another fleet: exit code 2, and nothing that could be taken for rules."""
    Authority.create(tmp_path / "ca", "kitchen", now=time.time()).close()
    for words, remedy in (
        ((), "--fleet"),
        (("--ca-dir", tmp_path), "fedpatch ca init"),
        (("--ca-dir", tmp_path / "ca", "--fleet", "attic"), "leave --fleet out"),
    ):
        ended = fedpatch("broker", "acl", *words)
        assert (ended.code, ended.out) == (2, "") and remedy in ended.err
