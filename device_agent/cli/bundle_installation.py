"""Installs the bundle of an identity: checks it, puts its files into the state directory, and their names into agent.toml.

    STATE_DIR/identity/ca.crt        the CA to trust
    STATE_DIR/identity/client.pem    certificate and key in one file, so that both change in one rename
    STATE_DIR/identity/password      where the bundle has a password

The order is: CA, certificate and key or password, agent.toml. After an interruption at any moment, another installation
completes it. A second installation of the same bundle changes nothing. Only the owner of the state directory can read the
files in identity/.
"""

from __future__ import annotations

import os
import ssl
import stat
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fedpatch.device_agent.cli.acting_as import acting_as
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.app.files import OPEN_TO_OTHERS, open_atomic, refusals_of, remedy_to_read
from fedpatch.shared.app.formatting import minute
from fedpatch.shared.config.enrolment_bundle import MAX_BUNDLE_BYTES, Bundle, decode_bundle
from fedpatch.shared.config.toml_edit import parse_toml, with_values
from fedpatch.shared.errors import ConfigError, DataError, UsageError
from fedpatch.shared.mqtt.broker_profile import fitting_profile
from fedpatch.shared.mqtt.certificate import Certificate, read_pem
from fedpatch.shared.mqtt.url import parse_broker_url

DIRECTORY, CA_NAME, OWN_NAME = "identity", "ca.crt", "client.pem"
PASSWORD_NAME = "password"  # the file's name  # nosec B105

_NOT_YET_VALID = 9


@dataclass
class Enrolled:
    """Result of an installation: the device's identity, the files written, and notes for its owner."""

    device: str
    fleet: str
    broker: str
    written: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_bundle(path: Path) -> Bundle:
    """Return the bundle in a file; DataError if it is damaged, UsageError if there is no such file."""
    try:
        with path.open("rb") as file:
            return decode_bundle(file.read(MAX_BUNDLE_BYTES + 1), path)
    except OSError as error:
        remedy = remedy_to_read(error, path, "name the file that `fedpatch device add` wrote")
        raise UsageError(f"{path}: {error.strerror or error}; {remedy}") from None


def open_to_others(path: Path, device: str) -> list[str]:
    """Return a warning if other users may have read the bundle. It is not refused, since a memory stick has no file modes."""
    mode = path.stat().st_mode & 0o777
    if not mode & OPEN_TO_OTHERS:
        return []
    return [
        f"{path} is open to other users (mode {mode:04o}): any reader can pass for {device}; "
        f"if anybody may have, `fedpatch device rotate {device}` makes another"
    ]


def install(bundle: Bundle, *, config: Path, state_dir: Path, replace: bool) -> Enrolled:
    """Install the identity of the bundle. UsageError, before anything is written, if this device has another identity already.

    With `replace` the new identity replaces the other one. DataError if the parts of the bundle do not belong together.
    """
    done = Enrolled(bundle.device, bundle.fleet, bundle.broker)
    config = _behind_link(config)
    text, table = _settings(config)
    broker = bundle.broker or str(table.get("broker", ""))
    # Without a broker in both, the owner still has to name one: `mqtts://`, if the fleet has a CA.
    has_tls = not broker or parse_broker_url(broker).tls
    if bundle.certificate and not has_tls:
        raise UsageError(f"{broker}: a certificate is of no use without TLS; write mqtts:// as the broker")
    place = state_dir.absolute() / DIRECTORY
    own = _check_certificate(bundle, done) if bundle.certificate else None
    values = _values(bundle, place, has_tls=has_tls)
    if not config.exists() and state_dir != AgentSettings.state_dir:
        values["state_dir"] = str(place.parent)  # else the agent would use its default directory
    if not replace:
        _check_not_another(bundle, table, place, config)
    with refusals_of(place):
        owner = prepare(place)
        with acting_as(owner):
            if bundle.ca:
                _put(place / CA_NAME, bundle.ca.encode(), done)
            if own is not None:
                _put(place / OWN_NAME, _together(bundle), done)
            if bundle.password:
                _put(place / PASSWORD_NAME, f"{bundle.password}\n".encode(), done)
        _put_settings(config, text, values, _contradicting(bundle, table, place, has_tls=has_tls), owner, done)
        # Files of the former identity are deleted last, since the settings named them until now.
        with acting_as(owner):
            for name, wanted in ((OWN_NAME, own is not None), (PASSWORD_NAME, bool(bundle.password))):
                if not wanted:
                    (place / name).unlink(missing_ok=True)
    return done


def check_settings(config: Path) -> None:
    """Raise ConfigError or UsageError for a settings file that `install` could not change."""
    _settings(_behind_link(config))


def prepare(place: Path) -> os.stat_result:
    """Make the directory of the identity (mode 0700); return the owner of the state directory, who writes there."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = place.parent.stat()
    _give(place, owner)
    with acting_as(owner):
        place.mkdir(exist_ok=True, mode=0o700)
    return owner


def _give(place: Path, owner: os.stat_result) -> None:
    """Give the identity's files from root to the new owner of the state directory, without following a link of that owner."""
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    try:
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # absent, or a link, which is followed only while acting as the owner
        return
    try:
        if os.fstat(folder).st_uid != 0:
            return
        for name in os.listdir(folder):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
        os.fchown(folder, owner.st_uid, owner.st_gid)
    finally:
        os.close(folder)


def _behind_link(config: Path) -> Path:
    """Return the file to write, behind a link if `config` is one; UsageError if another user made the link."""
    try:
        if config.is_symlink() and config.lstat().st_uid not in (0, os.geteuid()):
            raise UsageError(f"{config} is a link of another user; name the file itself with --config")
        return config.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError([f"{config}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from error


def _settings(config: Path) -> tuple[str, dict[str, object]]:
    try:
        text = config.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        return text, parse_toml(text)
    except FileNotFoundError:
        return "", {}
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{config}: not TOML: {error}; correct it first"]) from None
    except OSError as error:
        remedy = remedy_to_read(error, config, "correct --config")
        raise ConfigError([f"{config}: cannot be read: {error.strerror or error}; {remedy}"]) from None


def _values(bundle: Bundle, place: Path, *, has_tls: bool) -> dict[str, str]:
    values = {"fleet": bundle.fleet, "device_id": bundle.device}
    if bundle.broker:
        values["broker"] = bundle.broker
    if bundle.broker_profile:
        values["broker_profile"] = bundle.broker_profile
    if bundle.ca and has_tls:
        values["ca_file"] = str(place / CA_NAME)
    if bundle.certificate:
        values["cert_file"] = values["key_file"] = str(place / OWN_NAME)
    if bundle.password:
        values |= {"username": bundle.device, "password_file": str(place / PASSWORD_NAME)}
    return values


def _contradicting(bundle: Bundle, table: dict[str, object], place: Path, *, has_tls: bool) -> list[str]:
    """Return settings with which an agent would not start beside those of the bundle, and those left by an earlier bundle."""
    keys = []
    if bundle.password:
        keys.append("password")
    elif table.get("password_file") == str(place / PASSWORD_NAME):
        keys += ["username", "password_file"]
    if not bundle.certificate:
        keys += [key for key in ("cert_file", "key_file") if table.get(key) == str(place / OWN_NAME)]
    known = str(table.get("broker", ""))
    if bundle.broker and known and not bundle.broker_profile and fitting_profile(parse_broker_url(known).host):
        keys.append("broker_profile")
    if not has_tls and table.get("ca_file") == str(place / CA_NAME):
        keys.append("ca_file")
    return keys


def _check_not_another(bundle: Bundle, table: dict[str, object], place: Path, config: Path) -> None:
    remedy = "is this bundle for another device? --replace makes this one it"
    for key, ours in (("fleet", bundle.fleet), ("device_id", bundle.device)):
        if table.get(key, ours) not in (ours, ""):
            raise UsageError(f"{config} says {key} = {table[key]!r}, and the bundle {ours!r}; {remedy}")
    try:
        holder = read_pem((place / OWN_NAME).read_bytes())[0].holder
    except (OSError, ValueError):
        return
    if holder is not None and (holder.fleet, holder.name) != (bundle.fleet, bundle.device):
        raise UsageError(
            f"{place} holds the identity of {holder.name!r} in fleet {holder.fleet!r}, and the bundle that of "
            f"{bundle.device!r} in fleet {bundle.fleet!r}; {remedy}"
        )


def _check_certificate(bundle: Bundle, done: Enrolled) -> Certificate:
    """Check that certificate, key, CA and names belong together; also the dates, unless the clock is behind."""
    anew = "make the bundle anew: fedpatch device rotate"
    try:
        own = read_pem(bundle.certificate.encode())[0]
        read_pem(bundle.ca.encode("ascii"))  # the TLS library accepts no other encoding
    except ValueError as error:
        raise DataError(f"the bundle's certificate is damaged ({error}); {anew}") from None
    holder = own.holder
    if holder is None or (holder.fleet, holder.part, holder.name) != (bundle.fleet, "device", bundle.device):
        raise DataError(f"the bundle's certificate is not for {bundle.device!r} in fleet {bundle.fleet!r}; {anew}")
    now = time.time()
    if own.standing(now) == "not yet valid":
        done.warnings.append(
            f"the certificate is not valid before {minute(own.not_before)}, and the clock says {minute(now)}: "
            "the agent waits until the clock is set"
        )
    if own.standing(now) == "expired":
        clock = f"the clock says {minute(now)}"
        raise DataError(
            f"the bundle's certificate has expired on {minute(own.not_after)}, and {clock}; {anew}, or set the clock"
        )
    _shake_hands(bundle, anew)
    return own


def _shake_hands(bundle: Bundle, anew: str) -> None:
    """Check by a TLS handshake in memory that the key fits and that the CA signed the certificate."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    server.verify_mode = ssl.CERT_REQUIRED
    with tempfile.NamedTemporaryFile(prefix="fedpatch-") as file:  # mode 0600, as the key needs it
        file.write(_together(bundle))
        file.flush()
        try:
            for context in (server, client):
                context.load_cert_chain(file.name, password=lambda: b"")
            server.load_verify_locations(cadata=bundle.ca)
        except ssl.SSLError as error:
            raise DataError(f"the bundle's key is not that of its certificate ({error.reason}); {anew}") from None
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(incoming=one, outgoing=other),
        server.wrap_bio(incoming=other, outgoing=one, server_side=True),
    )
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                if error.verify_code != _NOT_YET_VALID:
                    raise DataError(
                        f"the bundle's CA did not make its certificate ({error.verify_message}); {anew}"
                    ) from None
                return
            except ssl.SSLError as error:
                raise DataError(f"the bundle's certificate cannot be used ({error.reason}); {anew}") from None


def _together(bundle: Bundle) -> bytes:
    return bundle.certificate.rstrip().encode() + b"\n" + bundle.key.rstrip().encode() + b"\n"


def _put(path: Path, data: bytes, done: Enrolled, mode: int = 0o600, owner: os.stat_result | None = None) -> None:
    """Write a file unless it has this content already; if root writes, the file belongs to `owner`."""
    if path.exists() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
        return
    with open_atomic(path, mode=mode) as file:
        if owner is not None and os.geteuid() == 0:
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.write(data)
    done.written.append(str(path))


def _put_settings(
    config: Path, text: str, values: dict[str, str], without: list[str], owner: os.stat_result, done: Enrolled
) -> None:
    """Write the settings; an existing file keeps its owner and its mode, since nothing secret is written to it."""
    try:
        changed = with_values(text, values, without)
    except ValueError:
        raise ConfigError([f"{config}: cannot be changed; write into it: {', '.join(values)}"]) from None
    mode = 0o600
    if config.exists():
        owner = config.stat()
        mode = owner.st_mode & 0o777
    config.parent.mkdir(parents=True, exist_ok=True)
    _put(config, changed.encode(), done, mode, owner)
