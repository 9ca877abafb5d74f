"""The bundle of an identity, installed on a device."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.pki.certificate_authority import DEVICE, Authority
from fedpatch.coordinator.pki.enrolment import enrol
from fedpatch.device_agent.cli.bundle_installation import install, open_to_others, read_bundle
from fedpatch.device_agent.cli.main import main
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.enrolment_bundle import Bundle, decode_bundle, encode_bundle
from fedpatch.shared.errors import ConfigError, DataError, StateError, UsageError
from fedpatch.shared.mqtt.broker_settings import read_password
from fedpatch.shared.mqtt.tls_context import TlsFiles, tls_context
from fedpatch.shared.mqtt.url import parse_broker_url
from tests.support.other_users import NOBODY, open_directory
from tests.support.programs import Program

OWN = '# the owner\'s\ntask = "digits"\ndata = "shard:0/2"  # all there is\n'


def bundle_of(directory: Path, device: str = "pi-1", fleet: str = "kitchen", now: float = 0.0, days: int = 9) -> Bundle:
    now = now or time.time()
    with Authority.create(directory / fleet, fleet, now=now - 86_400) as authority:
        pair = authority.issue(DEVICE, device, now=now, days=days).pair
        return Bundle(
            fleet=fleet,
            device=device,
            broker="mqtts://broker.lan",
            ca=authority.certificate.decode(),
            certificate=pair.certificate.decode(),
            key=pair.key.decode(),
        )


class Device:
    """A device with its owner's settings, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.config, self.state_dir = directory / "agent.toml", directory / "state"
        self.config.write_text(OWN)

    def install(self, bundle: Bundle, *, replace: bool = False) -> list[str]:
        return install(bundle, config=self.config, state_dir=self.state_dir, replace=replace).written

    @property
    def settings(self) -> dict[str, object]:
        return tomllib.loads(self.config.read_text())


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_bundle_makes_a_device_who_it_is(tmp_path: Path, device: Device):
    device.install(bundle_of(tmp_path))
    place = device.state_dir / "identity"
    assert device.settings == {
        **tomllib.loads(OWN),
        "broker": "mqtts://broker.lan",
        "fleet": "kitchen",
        "device_id": "pi-1",
        "ca_file": str(place / "ca.crt"),
        "cert_file": str(place / "client.pem"),
        "key_file": str(place / "client.pem"),
    }
    assert device.config.read_text().startswith(OWN)
    assert {path.name: path.stat().st_mode & 0o777 for path in place.iterdir()} == {
        "ca.crt": 0o600,
        "client.pem": 0o600,
    }
    assert device.state_dir.stat().st_mode & 0o077 == 0
    files = TlsFiles(place / "ca.crt", place / "client.pem", place / "client.pem")
    assert tls_context(parse_broker_url("mqtts://broker.lan"), files) is not None


PLAIN = Bundle(fleet="kitchen", device="pi-1", broker="mqtts://broker.lan", password="s3cret")


@pytest.fixture
def served() -> Iterator[Device]:
    """A device whose state directory belongs to a service user; its parents are open to that user, unlike tmp_path."""
    with open_directory() as directory:
        device = Device(directory)
        device.state_dir.mkdir()
        os.chown(device.state_dir, NOBODY, NOBODY)
        yield device


def test_bundle_that_root_installs_belongs_to_the_owner_of_the_state_directory(tmp_path: Path, served: Device):
    groups, place = os.getgroups(), served.state_dir / "identity"
    served.install(bundle_of(tmp_path))
    served.install(PLAIN)
    assert {one.stat().st_uid for one in (place, *place.iterdir())} == {NOBODY}
    assert served.config.stat().st_uid == 0
    assert (os.geteuid(), os.getgroups()) == (0, groups)


def test_root_follows_no_link_of_the_service_user_out_of_the_state_directory(served: Device):
    victim = served.config.parent / "victim"
    victim.mkdir()
    (served.state_dir / "identity").symlink_to(victim)
    with pytest.raises(StateError, match="Permission denied"):
        served.install(PLAIN)
    assert (victim.stat().st_uid, list(victim.iterdir())) == (0, [])


def test_identity_that_root_made_goes_to_the_new_owner_of_the_state_directory(tmp_path: Path, served: Device):
    os.chown(served.state_dir, 0, 0)
    served.install(PLAIN)
    victim, place = served.config.parent / "victim", served.state_dir / "identity"
    victim.write_text("root's")
    (place / "link").symlink_to(victim)
    os.chown(served.state_dir, NOBODY, NOBODY)
    served.install(bundle_of(tmp_path))
    assert {one.lstat().st_uid for one in (place, place / "client.pem")} == {NOBODY}
    assert victim.stat().st_uid == 0


def test_root_without_the_right_to_act_as_the_owner_is_an_error_that_names_the_user(served: Device, monkeypatch):
    def refuse(groups: list[int]) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "setgroups", refuse)
    with pytest.raises(StateError, match=f"as user {NOBODY}, .*run this command as that user"):
        served.install(PLAIN)


def test_root_follows_no_link_of_another_user_to_a_settings_file(served: Device):
    link = served.state_dir / "agent.toml"
    link.symlink_to(served.config)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(UsageError, match="link of another user"):
        install(PLAIN, config=link, state_dir=served.state_dir, replace=False)


def test_link_that_leads_to_itself_is_no_settings_file(device: Device, tmp_path: Path):
    link = tmp_path / "loop.toml"
    link.symlink_to(link)
    with pytest.raises(ConfigError, match=r"loop\.toml: cannot be read"):
        install(PLAIN, config=link, state_dir=device.state_dir, replace=False)


def test_link_to_the_settings_file_stays_a_link(tmp_path: Path, device: Device):
    link = tmp_path / "link.toml"
    link.symlink_to(device.config)
    done = install(PLAIN, config=link, state_dir=device.state_dir, replace=False)
    assert link.is_symlink()
    assert device.settings["device_id"] == "pi-1"
    assert str(device.config) in done.written


def test_the_same_bundle_again_changes_nothing(tmp_path: Path, device: Device):
    bundle = bundle_of(tmp_path)
    assert len(device.install(bundle)) == 3
    assert device.install(bundle) == []
    assert device.install(bundle_of(tmp_path)) == [str(device.state_dir / "identity" / "client.pem")]


@pytest.mark.parametrize(("other", "fleet"), [("pi-2", "kitchen"), ("pi-1", "garden")])
def test_enrol_replaces_another_identity_only_with_the_option(tmp_path: Path, device: Device, other: str, fleet: str):
    device.install(bundle_of(tmp_path))
    before = device.config.read_text()
    newcomer = bundle_of(tmp_path, other, fleet)
    with pytest.raises(UsageError, match="is this bundle for another device\\? --replace makes this one it"):
        device.install(newcomer)
    assert device.config.read_text() == before
    device.config.write_text(OWN)
    with pytest.raises(UsageError, match="holds the identity of 'pi-1' in fleet 'kitchen'"):
        device.install(newcomer)
    device.install(newcomer, replace=True)
    assert (device.settings["device_id"], device.settings["fleet"]) == (other, fleet)


def test_parts_of_different_identities_are_refused(tmp_path: Path, device: Device):
    bundle, other = bundle_of(tmp_path), bundle_of(tmp_path, "pi-2", "garden")
    for wrong, words in (
        (replace(bundle, key=other.key), "the bundle's key is not that of its certificate"),
        (replace(bundle, ca=other.ca), "the bundle's CA did not make its certificate"),
        (replace(bundle, device="pi-9"), "the bundle's certificate is not for 'pi-9' in fleet 'kitchen'"),
        (replace(bundle, certificate="nothing"), "the bundle's certificate is damaged"),
        (replace(bundle, ca=f"{bundle.ca}é"), "the bundle's certificate is damaged"),
        (
            bundle_of(tmp_path, now=time.time() - 50_000, days=0),
            "the bundle's certificate has expired on .*, and the clock says .*, or set the clock",
        ),
    ):
        with pytest.raises(DataError, match=words):
            device.install(wrong)
    with pytest.raises(UsageError, match="of no use without TLS; write mqtts://"):
        device.install(replace(bundle, broker="mqtt://broker.lan"))
    assert not device.state_dir.exists() and device.config.read_text() == OWN


def test_a_clock_that_is_behind_does_not_hinder_it(tmp_path: Path, device: Device):
    future = bundle_of(tmp_path, now=time.time() + 86_400 * 9)
    done = install(future, config=device.config, state_dir=device.state_dir, replace=False)
    assert "the agent waits until the clock is set" in done.warnings[0]


def test_a_password_is_for_the_owner_alone(tmp_path: Path, device: Device):
    device.config.chmod(0o644)
    bundle = Bundle(fleet="kitchen", device="pi-1", broker="mqtts://broker.lan", password="s3cret")
    device.install(bundle)
    place = device.state_dir / "identity" / "password"
    assert device.settings["username"] == "pi-1" and "s3cret" not in device.config.read_text()
    assert device.settings["password_file"] == str(place) and read_password(place) == "s3cret"
    assert (place.stat().st_mode & 0o777, device.config.stat().st_mode & 0o777) == (0o600, 0o644)
    device.install(bundle_of(tmp_path))
    assert not place.exists() and not {"username", "password_file"} & device.settings.keys()
    assert "s3cret" not in repr(bundle)


def test_a_bundle_of_a_hosted_broker_sets_its_profile_until_one_of_another_broker(tmp_path: Path, device: Device):
    hosted = "mqtts://a1-ats.iot.eu-west-1.amazonaws.com"
    for broker, profile in ((hosted, "aws"), ("mqtts://broker.lan", None)):
        with Authority.create(tmp_path / "ca", "kitchen", now=time.time()) as authority:
            known = authority.index.current(DEVICE, "pi-1") is not None
            out = tmp_path / f"{profile}.bundle"
            enrol(authority, "pi-1", out, broker=broker, days=9, password=False, renewal=known)
        device.install(read_bundle(out))
        assert device.settings.get("broker_profile") == profile
    device.config.write_text(f'{device.config.read_text()}broker_profile = "azure"\n')  # behind the owner's own domain
    device.install(read_bundle(out))
    assert device.settings["broker_profile"] == "azure"


def test_a_password_takes_the_place_of_what_contradicts_it(tmp_path: Path, device: Device):
    """Before: a file with another password and the former certificate. The agent starts; a repeat changes nothing."""
    device.install(bundle_of(tmp_path))
    device.config.write_text(f'password = "old"  # the old one\n{device.config.read_text()}')
    bundle = Bundle(
        fleet="kitchen", device="pi-2", broker="mqtts://broker.lan", ca=bundle_of(tmp_path).ca, password="s3"
    )
    device.install(bundle, replace=True)
    place = device.state_dir / "identity"
    assert device.settings == {
        **tomllib.loads(OWN),
        "broker": "mqtts://broker.lan",
        "fleet": "kitchen",
        "device_id": "pi-2",
        "ca_file": str(place / "ca.crt"),
        "username": "pi-2",
        "password_file": str(place / "password"),
    }
    assert AgentSettings(**device.settings).check() == []  # type: ignore[arg-type]
    assert not (place / "client.pem").exists() and device.config.read_text().startswith(OWN)
    assert device.install(bundle) == []
    device.install(replace(bundle, broker="mqtt://localhost"))
    assert AgentSettings(**device.settings).check() == []  # type: ignore[arg-type]


@pytest.mark.parametrize("former", ["mqtt://localhost", "mqtts://broker.lan"])
def test_password_without_a_broker_leaves_settings_with_which_the_agent_starts(
    tmp_path: Path, device: Device, former: str
):
    """The bundle has the fleet's CA, which a broker without TLS makes an error. `former`: the broker of an earlier bundle."""
    bundle = Bundle(fleet="kitchen", device="pi-1", broker=former, ca=bundle_of(tmp_path).ca, password="s3")
    device.install(bundle)
    device.config.write_text(device.config.read_text().replace(former, "mqtt://localhost"))
    device.install(replace(bundle, broker=""))
    assert device.settings["broker"] == "mqtt://localhost"
    assert AgentSettings(**device.settings).check() == []  # type: ignore[arg-type]


def test_a_certificate_of_the_owner_s_own_stays_beside_a_password(tmp_path: Path, device: Device):
    device.config.write_text('cert_file = "/etc/ssl/mine.pem"\n')
    device.install(Bundle(fleet="kitchen", device="pi-1", broker="mqtts://broker.lan", password="s3cret"))
    assert device.settings["cert_file"] == "/etc/ssl/mine.pem"


def test_an_installation_that_is_cut_short_is_completed_by_doing_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a power cut at any write, the certificate and the key in the file fit."""
    first, second = bundle_of(tmp_path), bundle_of(tmp_path)
    for write in itertools.count():
        directory = tmp_path / str(write)
        directory.mkdir()
        device = Device(directory)
        device.install(replace(first, broker="mqtts://old"))
        count = itertools.count()

        def pulled(source: str, target: str, count: itertools.count = count, stop: int = write) -> None:
            if next(count) == stop:
                raise KeyboardInterrupt
            os.rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr("fedpatch.shared.app.files.os.replace", pulled)
            try:
                device.install(second)
                whole = True
            except KeyboardInterrupt:
                whole = False
        place = device.state_dir / "identity" / "client.pem"
        assert place.read_text() in {f"{one.certificate.rstrip()}\n{one.key.rstrip()}\n" for one in (first, second)}
        device.install(second)
        assert place.read_text().startswith(second.certificate.rstrip())
        assert device.settings["broker"] == "mqtts://broker.lan"
        if whole:
            return


def test_file_that_is_no_bundle_is_refused_without_quoting_its_content(tmp_path: Path):
    bundle = bundle_of(tmp_path)
    assert decode_bundle(encode_bundle(bundle), "it") == bundle
    plain = json.loads(encode_bundle(bundle))
    for data, words in (
        (b"PRIVATE", "damaged, or not a bundle"),
        (json.dumps({**plain, "device": "../etc"}).encode(), "damaged, or not a bundle"),
        (json.dumps({**plain, "device": "pi-1\n"}).encode(), "damaged, or not a bundle"),
        (json.dumps({**plain, "fedpatch_bundle": 2}).encode(), "a bundle of version 2"),
        (json.dumps({**plain, "key": ""}).encode(), "neither a certificate with its key nor a password"),
        (bytes(10**6), "larger than any bundle"),
    ):
        with pytest.raises(DataError, match=words) as refused:
            decode_bundle(data, "it")
        assert "PRIVATE" not in str(refused.value)
    with pytest.raises(UsageError, match="No such file"):
        read_bundle(tmp_path / "none")


def test_settings_that_cannot_be_read_are_left_alone(tmp_path: Path, device: Device):
    device.config.write_text("data = [")
    with pytest.raises(ConfigError, match="not TOML"):
        device.install(bundle_of(tmp_path))


def test_bundle_readable_by_others_is_reported(tmp_path: Path):
    bundle = tmp_path / "pi-1.bundle"
    bundle.touch(mode=0o600)
    assert open_to_others(bundle, "pi-1") == []
    bundle.chmod(0o644)
    (warning,) = open_to_others(bundle, "pi-1")
    assert "pi-1.bundle is open to other users (mode 0644)" in warning and "fedpatch device rotate pi-1" in warning


def test_settings_that_enrolling_makes_name_the_state_directory_that_it_was_given(tmp_path: Path, device: Device):
    bundle = bundle_of(tmp_path)
    device.install(bundle)
    assert "state_dir" not in device.settings
    device.config.unlink()
    device.install(bundle)
    assert device.settings["state_dir"] == str(device.state_dir)
    before = device.config.read_text()
    assert device.install(bundle) == [] and device.config.read_text() == before


def test_enrol_names_required_settings_that_are_missing(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "pi-1.bundle").write_bytes(encode_bundle(bundle_of(tmp_path)))
    monkeypatch.chdir(tmp_path)
    agent = Program(main, monkeypatch, capsys)
    printed = agent("enrol", "pi-1.bundle", "--state-dir", "state").out
    assert "write into agent.toml what the device trains with" in printed
    assert printed.endswith("then: fedpatch-agent doctor --config agent.toml\n")
    Path("agent.toml").write_text(OWN)
    printed = agent("enrol", "pi-1.bundle", "--state-dir", "state").out
    assert "what the device trains with" not in printed
    assert printed.endswith("then: fedpatch-agent doctor --config agent.toml --state-dir state\n")


@pytest.mark.parametrize("broker", ["", "mqtts://broker.lan"])
def test_enrol_asks_for_the_broker_that_neither_bundle_nor_settings_name(
    broker: str, tmp_path: Path, monkeypatch, capsys
):
    (tmp_path / "pi-1.bundle").write_bytes(encode_bundle(replace(bundle_of(tmp_path), broker=broker)))
    monkeypatch.chdir(tmp_path)
    printed = Program(main, monkeypatch, capsys)("enrol", "pi-1.bundle", "--state-dir", "state").out
    asks = 'write into agent.toml the address of the broker, such as broker = "mqtts://broker.local"' in printed
    assert asks == (not broker)


def test_a_device_needs_no_further_package(tmp_path: Path):
    (tmp_path / "bundle").write_bytes(encode_bundle(bundle_of(tmp_path)))
    program = (
        "import sys; sys.modules['cryptography'] = None; from fedpatch.device_agent.cli.main import main; "
        f"sys.argv = ['fedpatch-agent', 'enrol', '{tmp_path}/bundle', '--config', '{tmp_path}/agent.toml', "
        f"'--state-dir', '{tmp_path}/state', '--json']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["device"] == "pi-1"
