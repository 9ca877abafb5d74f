"""`fedpatch ca` and `fedpatch device` on the command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509

from fedpatch.coordinator.pki.certificate_authority import BROKER, DAY_S, Authority
from fedpatch.shared.config.enrolment_bundle import decode_bundle
from fedpatch.shared.mqtt.certificate import read_pem
from tests.support.programs import Ended, Program


@pytest.fixture
def fedpatch(fedpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    """The command line, with the CA of the fleet `kitchen` in the state directory of the current folder."""
    monkeypatch.chdir(tmp_path)
    well(fedpatch("ca", "init", "--fleet", "kitchen", "--broker-name", "broker.lan"))
    return fedpatch


def well(ended: Ended) -> Ended:
    assert ended.code == 0, ended.err
    return ended


def listed(fedpatch: Program) -> dict[str, dict[str, object]]:
    """Return the output of `fedpatch device list --json`, by name."""
    return {one["name"]: one for one in json.loads(well(fedpatch("device", "list", "--json")).out)}


def test_ca_init_makes_ca_broker_and_coordinator_certificates(fedpatch: Program, tmp_path: Path):
    place = tmp_path / "fedpatch-state" / "ca"
    files = {str(one.relative_to(place)): one.read_bytes() for one in sorted(place.rglob("*.*"))}
    assert set(files) == {
        *("ca.crt", "ca.key", "ca.crl", "index.json", "broker/broker.crt", "broker/broker.key"),
        *("coordinator/client.crt", "coordinator/client.key"),
    }
    assert all(one.stat().st_mode & 0o077 == 0 for one in place.rglob("*.key"))
    again = well(fedpatch("ca", "init", "--fleet", "kitchen", "--broker-name", "broker.lan"))
    assert {str(one.relative_to(place)): one.read_bytes() for one in sorted(place.rglob("*.*"))} == files
    assert f"--cert-file {place}/coordinator/client.crt" in again.err
    other = fedpatch("ca", "init", "--fleet", "garden")
    assert other.code == 2 and "is the CA of fleet 'kitchen', not of 'garden'" in other.err


def test_ca_init_with_other_broker_names_names_the_command_that_renews(fedpatch: Program, tmp_path: Path):
    place = tmp_path / "fedpatch-state" / "ca"
    before = (place / "broker" / "broker.crt").read_bytes()
    refused = fedpatch("ca", "init", "--fleet", "kitchen", "--broker-name", "other.lan", "--broker-name", "::1")
    assert refused.code == 2 and "is for broker.lan, not for other.lan, ::1" in refused.err
    assert "fedpatch ca broker --broker-name other.lan --broker-name ::1" in refused.err
    assert (place / "broker" / "broker.crt").read_bytes() == before
    well(fedpatch("ca", "broker", "--broker-name", "other.lan", "--broker-name", "0:0::1"))
    well(fedpatch("ca", "init", "--fleet", "kitchen", "--broker-name", "::1", "--broker-name", "other.lan"))


def test_ca_init_renews_expired_certificates(fedpatch: Program, tmp_path: Path):
    place = tmp_path / "fedpatch-state" / "ca" / "broker"
    with Authority.open(place.parent, now=time.time()) as authority:
        key = (place / "broker.key").read_bytes()
        authority.issue(BROKER, "broker", now=time.time() - 9 * DAY_S, days=1, names=["broker.lan"], key=key)
    again = well(fedpatch("ca", "init", "--fleet", "kitchen", "--broker-name", "broker.lan"))
    assert "there is the broker's certificate for broker.lan" in again.err
    assert read_pem((place / "broker.crt").read_bytes())[0].standing(time.time()) == "good"
    assert (place / "broker.key").read_bytes() == key


def test_ca_init_replaces_a_revoked_certificate_of_the_coordinator_and_its_key(fedpatch: Program, tmp_path: Path):
    place = tmp_path / "fedpatch-state" / "ca" / "coordinator" / "client.crt"
    [first], key = read_pem(place.read_bytes()), place.with_suffix(".key").read_bytes()
    well(fedpatch("ca", "coordinator", "--password", "--revoke-old"))
    well(fedpatch("ca", "init", "--fleet", "kitchen"))
    [second] = read_pem(place.read_bytes())
    assert first.serial in revoked(tmp_path)
    assert second.serial not in revoked(tmp_path)
    assert place.with_suffix(".key").read_bytes() != key
    well(fedpatch("ca", "init", "--fleet", "kitchen"))
    assert read_pem(place.read_bytes()) == [second]


def revoked(directory: Path) -> set[int]:
    """Return the serial numbers in the revocation list of the CA."""
    return {one.serial_number for one in x509.load_pem_x509_crl((directory / "fedpatch-state/ca/ca.crl").read_bytes())}


@pytest.mark.parametrize("part", ["broker", "coordinator"])
def test_damaged_key_is_refused_with_the_command_that_makes_another_and_records_nothing(
    fedpatch: Program, tmp_path: Path, part: str
):
    place = tmp_path / "fedpatch-state" / "ca"
    key = place / part / ("broker.key" if part == "broker" else "client.key")
    key.write_bytes(key.read_bytes()[:40])
    before = (place / "index.json").read_bytes()
    for words in (("ca", part), ("ca", "init", "--fleet", "kitchen", "--broker-name", "broker.lan")):
        refused = fedpatch(*words)
        assert refused.code == 2 and f"`fedpatch ca {part} --new-key`" in refused.err
    assert (place / "index.json").read_bytes() == before
    well(fedpatch("ca", part, "--new-key"))
    well(fedpatch("ca", part))


def test_commands_that_init_prints_name_a_folder_that_is_not_the_default_one(fedpatch: Program, tmp_path: Path):
    folder = tmp_path / "our CA"
    done = well(fedpatch("ca", "init", "--fleet", "garden", "--ca-dir", folder)).err
    assert f"broker: fedpatch ca broker --broker-name HOST --ca-dir '{folder}' makes its certificate and key" in done
    assert f"coordinator: --ca-file '{folder}/ca.crt' --cert-file '{folder}/coordinator/client.crt'" in done
    [command] = [line for line in done.splitlines() if line.startswith("devices: fedpatch ")]
    words = {"ID": "pi-1", "FILE": tmp_path / "pi-1"}
    well(fedpatch(*(words.get(word, word) for word in shlex.split(command.removeprefix("devices: fedpatch ")))))
    assert (tmp_path / "pi-1").exists()


@pytest.mark.medium
def test_device_add_rotate_and_revoke_print_next_steps(fedpatch: Program, tmp_path: Path):
    done = well(fedpatch("device", "add", "pi-1", "--broker", "mqtts://broker.lan", "--out", "one"))
    assert "on the device: fedpatch-agent enrol one, then delete it" in done.err and done.out == ""
    bundle = decode_bundle((tmp_path / "one").read_bytes(), "one")
    assert (bundle.fleet, bundle.device, bundle.broker) == ("kitchen", "pi-1", "mqtts://broker.lan")
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    again = fedpatch("device", "add", "pi-1", "--out", "two")
    assert again.code == 2 and "`fedpatch device rotate pi-1` makes it a new bundle" in again.err
    assert "fedpatch device revoke pi-1 --old" in well(fedpatch("device", "rotate", "pi-1", "--out", "two")).err
    assert (listed(fedpatch)["pi-1"]["state"], listed(fedpatch)["pi-1"]["others_good"]) == ("good", 1)
    well(fedpatch("device", "revoke", "pi-1", "--old"))
    assert (listed(fedpatch)["pi-1"]["state"], listed(fedpatch)["pi-1"]["others_good"]) == ("good", 0)
    gone = well(fedpatch("device", "revoke", "pi-1", "--reason", "stolen"))
    assert "ca.crl" in gone.err and "systemctl reload mosquitto" in gone.err
    assert (listed(fedpatch)["pi-1"]["state"], listed(fedpatch)["pi-1"]["reason"]) == ("revoked", "stolen")
    well(fedpatch("device", "add", "pi-1", "--out", "three"))
    assert listed(fedpatch)["pi-1"]["state"] == "good"


def test_bundle_that_cannot_be_written_issues_nothing(fedpatch: Program, tmp_path: Path):
    (tmp_path / "taken").write_text("mine")
    for out, words in (("taken", "exists already"), ("nowhere/one", "its directory is absent")):
        refused = fedpatch("device", "add", "pi-1", "--out", out)
        assert refused.code == 2 and words in refused.err
    assert listed(fedpatch) == {} and (tmp_path / "taken").read_text() == "mine"


def test_password_is_in_the_bundle_and_its_hash_in_the_broker_file(fedpatch: Program, tmp_path: Path):
    well(fedpatch("device", "add", "pi-1", "--password", "--out", "one"))
    word = decode_bundle((tmp_path / "one").read_bytes(), "one").password
    place = tmp_path / "fedpatch-state" / "ca"
    well(fedpatch("ca", "coordinator", "--password"))
    passwords = place / "broker" / "passwords"
    assert [line.partition(":")[0] for line in passwords.read_text().splitlines()] == ["coordinator", "pi-1"]
    assert word not in passwords.read_text() and "$7$" in passwords.read_text()
    environment = place / "coordinator" / "password.env"
    assert "FEDPATCH_USERNAME=coordinator\nFEDPATCH_PASSWORD=" in environment.read_text()
    assert environment.stat().st_mode & 0o777 == 0o600
    well(fedpatch("device", "revoke", "pi-1"))
    assert "pi-1" not in passwords.read_text()


def test_renewal_keeps_the_key_unless_a_new_one_is_requested(fedpatch: Program, tmp_path: Path):
    place = tmp_path / "fedpatch-state" / "ca"
    for stem, words in (
        ("broker/broker", ["ca", "broker", "--days", "9"]),
        ("coordinator/client", ["ca", "coordinator", "--days", "9"]),
    ):
        certificate, key = place / f"{stem}.crt", place / f"{stem}.key"
        before, former = read_pem(certificate.read_bytes())[0], key.read_bytes()
        well(fedpatch(*words))
        after = read_pem(certificate.read_bytes())[0]
        assert after.serial != before.serial and after.not_after < before.not_after
        assert key.read_bytes() == former
        well(fedpatch(*words, "--new-key"))
        assert key.read_bytes() != former
    before = read_pem((place / "ca.crt").read_bytes())[0]
    well(fedpatch("ca", "renew", "--ca-days", "5000"))
    assert read_pem((place / "ca.crt").read_bytes())[0].not_after > before.not_after


def test_renewal_of_the_ca_names_the_revocation_list_which_ends_with_the_former_certificate(
    fedpatch: Program, tmp_path: Path
):
    place = tmp_path / "fedpatch-state" / "ca"
    end = x509.load_pem_x509_crl((place / "ca.crl").read_bytes()).next_update_utc
    assert end is not None and int(end.timestamp()) == read_pem((place / "ca.crt").read_bytes())[0].not_after
    done = well(fedpatch("ca", "renew", "--ca-days", "5000"))
    assert f"copy {place}/ca.crl to the broker too" in done.err
    assert "systemctl reload mosquitto" in done.err


def test_revoke_old_replaces_key_certificate_and_password_of_the_coordinator(fedpatch: Program, tmp_path: Path):
    place = tmp_path / "fedpatch-state" / "ca"
    stolen = read_pem((place / "coordinator" / "client.crt").read_bytes())[0].serial
    key = (place / "coordinator" / "client.key").read_bytes()
    well(fedpatch("ca", "coordinator", "--password"))
    done = well(fedpatch("ca", "coordinator", "--revoke-old"))
    assert "ca.crl" in done.err and "systemctl reload mosquitto" in done.err
    assert (place / "coordinator" / "client.key").read_bytes() != key
    crl = x509.load_pem_x509_crl((place / "ca.crl").read_bytes())
    assert [one.serial_number for one in crl] == [stolen]
    assert (place / "broker" / "passwords").read_text() == ""


def test_watcher_gets_one_file_with_certificate_and_key(fedpatch: Program, tmp_path: Path):
    well(fedpatch("ca", "watcher", "anna", "--out", "anna.pem"))
    text = (tmp_path / "anna.pem").read_text()
    holder = read_pem(text.encode())[0].holder
    assert holder is not None and (holder.part, holder.name) == ("watcher", "anna") and "PRIVATE KEY" in text
    well(fedpatch("ca", "revoke-watcher", "anna"))
    shown = json.loads(well(fedpatch("ca", "show", "--json")).out)
    states = {(one["part"], one["name"]): one["state"] for one in shown["holders"]}
    assert states[("watcher", "anna")] == "revoked" and states[("coordinator", "coordinator")] == "good"
    assert shown["fleet"] == "kitchen" and shown["expires_at"] > 0
    assert "watcher" in well(fedpatch("ca", "show")).out
    assert well(fedpatch("ca", "crl")).out.strip() == str(tmp_path / "fedpatch-state" / "ca" / "ca.crl")


def test_commands_without_a_ca_are_usage_errors(fedpatch: Program, tmp_path: Path):
    for words in (["device", "list"], ["ca", "show"], ["device", "revoke", "pi-1"], ["ca", "crl"]):
        ended = fedpatch(*words, "--ca-dir", tmp_path / "none")
        assert ended.code == 2 and "no CA there; make one with `fedpatch ca init`" in ended.err


@pytest.mark.medium
def test_record_without_the_key_is_shown_and_changes_name_the_host_of_the_key(fedpatch: Program, tmp_path: Path):
    """So it is on a coordinator's host, where the key in its place would stop the run."""
    record = tmp_path / "hub" / "ca" / "index.json"
    record.parent.mkdir(parents=True)
    record.write_bytes((tmp_path / "fedpatch-state" / "ca" / "index.json").read_bytes())
    shown = well(fedpatch("ca", "show", "--ca-dir", record.parent))
    assert f"CA of fleet kitchen in {record.parent}, whose certificate is elsewhere" in shown.out
    refused = fedpatch("device", "revoke", "pi-1", "--ca-dir", record.parent)
    assert refused.code != 0 and "type this where the CA's ca.key is (--ca-dir;" in refused.err


def test_without_cryptography_the_error_names_the_extra(fedpatch: Program):
    program = (
        "import sys; sys.modules['cryptography'] = None; from fedpatch.cli import main; "
        "sys.argv = ['fedpatch', *sys.argv[1:]]; main()"
    )
    lists, makes = (
        subprocess.run([sys.executable, "-c", program, "device", *words], capture_output=True, text=True, check=False)
        for words in (["list", "--json"], ["add", "pi-9"])
    )
    assert (lists.returncode, lists.stdout.strip()) == (0, "[]"), lists.stderr
    assert makes.returncode == 2 and "pip install 'fedpatch[coordinator]'" in makes.stderr
