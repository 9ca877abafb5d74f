"""Enrols and revokes: changes the CA, the password file and the bundle together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedpatch.coordinator.pki.certificate_authority import COORDINATOR, DEVICE, WATCHER, Authority
from fedpatch.coordinator.pki.issued_certificates import BROKER, Entry
from fedpatch.coordinator.pki.mosquitto_passwd import keep_passwords, new_password, password_line
from fedpatch.coordinator.pki.x509 import check_key, check_server_names, names_of
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.config.enrolment_bundle import Bundle, encode_bundle
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.broker_profile import fitting_profile
from fedpatch.shared.mqtt.tls_context import TlsFiles, certificates_of, tls_context
from fedpatch.shared.mqtt.url import parse_broker_url


@contextmanager
def opened(directory: Path) -> Iterator[Authority]:
    """Open the CA for a change; first complete a change whose command was killed."""
    with Authority.open(directory, now=time.time()) as authority:
        keep_passwords(directory, authority.index)
        yield authority


def enrol(
    authority: Authority, device: str, out: Path, *, broker: str, days: int, password: bool, renewal: bool
) -> Entry:
    """Write the bundle of a device.

    Args:
        out: File to write, mode 0600.
        broker: URL of the broker; for a hosted broker the bundle also has its profile.
        days: Validity of a certificate.
        password: Create a password instead of a certificate.
        renewal: The device is enrolled already, and its present certificate stays valid.

    Returns:
        The entry in the record.

    Raises:
        UsageError: The device is enrolled already, or with `renewal` it is not.
    """
    current = authority.index.current(DEVICE, device)
    if renewal and current is None:
        raise UsageError(f"{device!r} has nothing to renew; `fedpatch device add {device}` enrols it")
    if not renewal and current is not None:
        raise UsageError(
            f"{device!r} is enrolled already; `fedpatch device rotate {device}` makes it a new bundle, "
            f"`fedpatch device revoke {device}` takes back what it has"
        )
    check_out(out)
    check_broker(broker, password)
    profile = fitting_profile(parse_broker_url(broker).host) if broker else ""
    ca = authority.certificate.decode()
    bundle = Bundle(fleet=authority.fleet, device=device, broker=broker, broker_profile=profile, ca=ca)
    if password:
        entry, words = _give_password(authority, DEVICE, device)
        bundle = replace(bundle, password=words)
    else:
        issued = authority.issue(DEVICE, device, now=time.time(), days=days)
        entry = issued.entry
        bundle = replace(bundle, certificate=issued.pair.certificate.decode(), key=issued.pair.key.decode())
    with refusals_of(out):
        write_atomic(out, encode_bundle(bundle))
    return entry


def revoke(authority: Authority, part: str, name: str, *, reason: str, only_old: bool) -> tuple[Entry, ...]:
    """Revoke the certificates and passwords of a holder and write the broker's files again.

    Args:
        part: Kind of holder, for example DEVICE.
        reason: Kept in the record.
        only_old: Keep the newest entry.

    Returns:
        The entries that were valid until now.
    """
    current = authority.index.current(part, name)
    keep = current.serial if only_old and current is not None else ""
    taken = authority.revoke(part, name, now=time.time(), reason=reason, keep=keep)
    keep_passwords(authority.directory, authority.index)
    return taken


def give_watcher(authority: Authority, name: str, out: Path, *, days: int) -> Entry:
    """Write a certificate and its key to one PEM file, for `fedpatch watch --cert-file`.

    Args:
        name: User name of the watcher.
        out: File to write, mode 0600.

    Returns:
        The CA's entry of the certificate.
    """
    check_out(out)
    issued = authority.issue(WATCHER, name, now=time.time(), days=days)
    with refusals_of(out):
        write_atomic(out, issued.pair.certificate + issued.pair.key)
    return issued.entry


def ensure_coordinator(authority: Authority, *, days: int, again: bool = False, new_key: bool = False) -> bool:
    """Create the coordinator's certificate with its present key, unless a valid one exists.

    Args:
        again: Create it even if a valid one exists.
        new_key: Create a new key, too.

    Returns:
        Whether it was created.
    """
    return _ensure(authority, COORDINATOR, "client", (), days=days, again=again, new_key=new_key)


def ensure_broker(
    authority: Authority, names: tuple[str, ...], *, days: int, again: bool = False, new_key: bool = False
) -> bool:
    """Create the broker's certificate unless a valid one exists.

    Args:
        names: Host names and addresses of the broker.
        again: Create it even if a valid one exists.
        new_key: Create a new key, too.

    Returns:
        Whether a certificate was created.

    Raises:
        UsageError: The present certificate is for other names, and `again` is false.
    """
    known = server_names(authority)
    if known and not again and check_server_names(names) != check_server_names(known):
        remedy = f"fedpatch ca broker {' '.join(f'--broker-name {one}' for one in names)} makes one that is"
        raise UsageError(f"the broker's certificate is for {', '.join(known)}, not for {', '.join(names)}; {remedy}")
    return _ensure(authority, BROKER, "broker", names, days=days, again=again, new_key=new_key)


def give_coordinator_password(authority: Authority) -> Path:
    """Write user name and password of the coordinator as an environment file; return its path."""
    _entry, words = _give_password(authority, COORDINATOR, COORDINATOR)
    path = authority.place(COORDINATOR, COORDINATOR) / "password.env"
    with refusals_of(path):
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_atomic(path, f"FEDPATCH_USERNAME={COORDINATOR}\nFEDPATCH_PASSWORD={words}\n".encode())
    return path


def server_names(authority: Authority) -> list[str]:
    """Return the names in the broker's present certificate; empty without one."""
    try:
        return names_of((authority.place(BROKER, "broker") / "broker.crt").read_bytes())
    except (OSError, ValueError):
        return []


def check_out(out: Path) -> None:
    """Raise UsageError where a secret cannot be written to `out`."""
    if out.exists():
        raise UsageError(f"{out} exists already; name another file with --out, or delete it")
    if not out.absolute().parent.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise UsageError(f"{out}: its directory is absent or cannot be written; name another file with --out")


def _ensure(
    authority: Authority, part: str, stem: str, names: tuple[str, ...], *, days: int, again: bool, new_key: bool
) -> bool:
    """Create the broker's or coordinator's certificate unless a valid one exists."""
    place = authority.place(part, part)
    certificate, key = place / f"{stem}.crt", place / f"{stem}.key"
    revoked = frozenset(one.serial for one in authority.index.entries if one.revoked_at)
    # The key of a revoked certificate may be in other hands.
    spoiled = any(f"{one.serial:x}" in revoked for one in certificates_of(certificate))
    if not again and not spoiled and _fit(certificate, key):
        return False
    known = _present_key(key, part) if key.exists() and not new_key and not spoiled else None
    authority.issue(part, part, now=time.time(), days=days, names=names, key=known)
    return True


def _present_key(path: Path, part: str) -> bytes:
    """Return the key of the broker or the coordinator; UsageError where it is damaged, before anything is recorded."""
    with refusals_of(path):
        pem = path.read_bytes()
    try:
        check_key(pem)
    except ValueError as error:
        raise UsageError(
            f"{path} is no usable key ({error}); make another one with `fedpatch ca {part} --new-key`"
        ) from None
    return pem


def _fit(certificate: Path, key: Path) -> bool:
    if not certificate.exists() or not key.exists():
        return False
    try:
        tls_context(parse_broker_url("mqtts://localhost"), TlsFiles(None, certificate, key))
    except UsageError:
        return False
    return all(one.standing(time.time()) != "expired" for one in certificates_of(certificate))


def _give_password(authority: Authority, part: str, name: str) -> tuple[Entry, str]:
    words = new_password()
    entry = authority.note_password(part, name)
    keep_passwords(authority.directory, authority.index, password_line(name, words))
    return entry, words


def check_broker(broker: str, password: bool) -> None:
    """Raise UsageError for a URL that a device could not use with its credentials, or that is none."""
    if broker and not parse_broker_url(broker).tls and not password:
        raise UsageError(f"{broker}: a certificate is of no use without TLS; write mqtts://, or use --password")
