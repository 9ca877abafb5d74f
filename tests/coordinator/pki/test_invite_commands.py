"""`fedpatch device invite|requests|approve|refuse` on the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fedpatch.coordinator.pki.invitations import InvitationStore
from fedpatch.shared.config.enrolment_word import code_to_compare, decode_request, encode_request, keys_of
from tests.support.certificate_requests import certificate_request
from tests.support.programs import Ended, Program


@pytest.fixture
def fedpatch(fedpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    """The command line, with the CA of the fleet `kitchen` in the state directory of the current folder."""
    monkeypatch.chdir(tmp_path)
    well(fedpatch("ca", "init", "--fleet", "kitchen"))
    return fedpatch


def well(ended: Ended) -> Ended:
    assert ended.code == 0, ended.err
    return ended


def ask(word: str) -> str:
    """Ask for a certificate with a word, as `fedpatch ca serve` receives it; return the code of the request."""
    request = certificate_request()
    asked = decode_request(encode_request(keys_of(word), request))
    InvitationStore(Path("fedpatch-state/ca")).take(asked, "192.0.2.7", time.time())
    return code_to_compare(request)


def requests(fedpatch: Program) -> list[tuple[str, str, str]]:
    """Return name, state and code of `fedpatch device requests --json`."""
    found = json.loads(well(fedpatch("device", "requests", "--json")).out)
    return [(one["device"], one["state"], one["code"]) for one in found]


def test_commands_from_the_word_to_the_approval_name_the_next_step(fedpatch: Program):
    invited = well(fedpatch("device", "invite", "pi-1", "--broker", "mqtts://broker.lan"))
    word = invited.out.strip()
    assert f"on the device: fedpatch-agent enrol --from HOST:8885 --word {word}" in invited.err
    assert requests(fedpatch) == [("pi-1", "invited", "")]
    code = ask(word)
    shown = well(fedpatch("device", "requests")).out
    assert "asks" in shown and code in shown and "192.0.2.7" in shown and word not in shown
    approved = well(fedpatch("device", "approve", "pi-1"))
    assert f"approved pi-1, whose request has the code {code}" in approved.err
    assert "before pi-1 can connect, make the broker's rules again (fedpatch broker acl)" in approved.err
    assert requests(fedpatch) == [("pi-1", "approved", code)]
    [listed] = json.loads(well(fedpatch("device", "list", "--json")).out)
    assert listed["name"] == "pi-1"


def test_several_devices_are_approved_or_refused_at_once(fedpatch: Program):
    words = [well(fedpatch("device", "invite", f"pi-{number}")).out for number in range(4)]
    codes = [ask(word) for word in words]
    well(fedpatch("device", "approve", "pi-0", "pi-1"))
    well(fedpatch("device", "refuse", "pi-2", "pi-3"))
    assert requests(fedpatch) == [("pi-0", "approved", codes[0]), ("pi-1", "approved", codes[1])]
    missing = fedpatch("device", "refuse", "pi-2")
    assert missing.code == 2 and "'pi-2' is not invited: there is nothing to refuse" in missing.err


@pytest.mark.parametrize(
    "command",
    [("add", "pi-1", "--out", "other.bundle"), ("rotate", "pi-1", "--out", "other.bundle"), ("revoke", "pi-1")],
)
def test_device_that_gets_a_bundle_or_is_revoked_has_no_invitation_any_more(
    fedpatch: Program, command: tuple[str, ...]
):
    if renews := command[0] != "add":
        well(fedpatch("device", "add", "pi-1"))
    ask(well(fedpatch("device", "invite", "pi-1", *["--renew"] * renews)).out)
    ask(well(fedpatch("device", "invite", "pi-2")).out)
    done = well(fedpatch("device", *command))
    assert "the invitation of pi-1 has ended" in done.err
    assert [name for name, _, _ in requests(fedpatch)] == ["pi-2"]
    refused = fedpatch("device", "approve", "pi-1")
    assert refused.code == 2 and "'pi-1' is not invited" in refused.err


def test_new_invitation_stays_where_only_old_certificates_are_revoked(fedpatch: Program):
    well(fedpatch("device", "add", "pi-1"))
    ask(well(fedpatch("device", "invite", "pi-1", "--renew")).out)
    well(fedpatch("device", "approve", "pi-1"))
    well(fedpatch("device", "revoke", "pi-1", "--old"))
    assert [state for _, state, _ in requests(fedpatch)] == ["approved"]


def test_commands_without_a_ca_are_refused(fedpatch: Program, tmp_path: Path):
    for words in (("device", "invite", "pi-1"), ("device", "requests"), ("device", "approve", "pi-1"), ("ca", "serve")):
        refused = fedpatch(*words, "--ca-dir", tmp_path / "none")
        assert refused.code == 2 and "no CA there" in refused.err
