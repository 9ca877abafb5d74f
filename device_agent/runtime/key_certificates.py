"""Signing of masking keys with the device's certificate, and the check of other devices' keys against the fleet's CA."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import UnsetType

from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.shared.app.file_systems import remedy_of_mode
from fedpatch.shared.config.secret_file import forbidden_mode
from fedpatch.shared.errors import StateError, WireError
from fedpatch.shared.masking.revocation import RevocationList, read_revocations
from fedpatch.shared.masking.signed_keys import Authorities, check_signed_keys, sign_keys, sign_statement
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.wire.masking_messages import GroupMember, MaskingKeys

_log = logging.getLogger("fedpatch.masking")


class CertificateFiles:
    """Certificate, key and CA in the files of the connection to the broker.

    The files are read for each round, so that a renewed certificate counts at once.

    Args:
        files: TLS files of the device; all are set.
        device: Name of the device.
        fleet: Name of the fleet.
        revocations: File of the list of revoked certificates.
        unix_time: Returns the time at which certificates of others must be valid, in unix seconds.

    Raises:
        WireError: A file cannot be read, or keys are not those of the device that they name; here and in each method.
    """

    def __init__(
        self,
        files: TlsFiles,
        device: str,
        fleet: str,
        revocations: RevocationFile,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._files, self._device, self._fleet = files, device, fleet
        self._revocations = revocations
        self._unix_time = unix_time
        self._authorities: tuple[bytes, Authorities] | None = None

    @staticmethod
    def of(files: TlsFiles, device: str, fleet: str, directory: Path) -> CertificateFiles | None:
        """Return the certificates of a device; None where it has no certificate, or trusts the system's CAs.

        Args:
            directory: State directory of the device.
        """
        if not files.cert_file or not files.ca_file:
            return None
        return CertificateFiles(files, device, fleet, RevocationFile(directory))

    def sign(self, keys: MaskingKeys, request: bytes) -> MaskingKeys:
        """Return the keys with the certificate and the signature of this device."""
        certificate, private_key = self._own()
        return sign_keys(self._device, keys, request, certificate=certificate, private_key=private_key)

    def sign_statement(self, text: bytes) -> bytes:
        """Return the signature of a statement by this device."""
        return sign_statement(text, self._own()[1])

    def _own(self) -> tuple[bytes, bytes]:
        """Return the certificate and its key."""
        assert self._files.cert_file is not None
        key_file = self._files.key_file or self._files.cert_file
        try:
            return _read(self._files.cert_file), _read(key_file, private=True)
        except WireError as error:
            # The coordinator receives the text of the decline, so it contains no path.
            _log.error("%s", error)
            raise WireError("this device cannot use its certificate or key; its log names the file") from None

    def check(self, member: GroupMember, request: bytes) -> None:
        """Check that another member has signed its keys with a certificate that is not revoked."""
        revoked, now = self._known_revocations(), self._unix_time()
        if revoked is not None:
            revoked.require_current(now)
        check_signed_keys(member.device, member.keys, request, self._trusted(), now, revoked)

    def take_revocations(self, der: bytes | UnsetType) -> None:
        """Take the list of a request, and keep it on the disk: afterwards no older list counts, and no request without one."""
        known = self._known_revocations()
        if isinstance(der, UnsetType):
            if known is not None:
                raise WireError(f"the request has no revocation list, and this device has seen list {known.number}")
            return
        found = read_revocations(der, self._trusted())
        found.require_current(self._unix_time())
        if known is not None and known.authority_key == found.authority_key:
            if found.number < known.number:
                raise WireError(
                    f"revocation list {found.number} is older than list {known.number}, which this device has"
                )
            if found.number == known.number:
                return
        try:
            self._revocations.save(der)
        except StateError as error:
            _log.error("%s", error)
            raise WireError("this device cannot keep the revocation list; its log names the file") from None

    def _known_revocations(self) -> RevocationList | None:
        """Return the kept list; None without one, and where it is of a CA that this device trusts no longer."""
        try:
            der = self._revocations.load()
        except StateError as error:
            _log.error("%s", error)
            raise WireError("this device cannot read its revocation list; its log names the file") from None
        try:
            return read_revocations(der, self._trusted()) if der else None
        except WireError as error:
            _log.warning("%s: the kept list does not count: %s", self._revocations.path, error)
            return None

    def _trusted(self) -> Authorities:
        assert self._files.ca_file is not None
        pem = _read(self._files.ca_file)
        if self._authorities is None or self._authorities[0] != pem:
            self._authorities = pem, Authorities.of_pem(self._fleet, pem)
        return self._authorities[1]


def _read(path: Path, *, private: bool = False) -> bytes:
    try:
        if private and path.stat().st_mode & forbidden_mode(path):
            remedy = remedy_of_mode(path, f"chmod 600 {path}")
            raise WireError(f"{path} is open to other users, who could sign for this device; {remedy}")
        return path.read_bytes()
    except OSError as error:
        raise WireError(f"{path}: {error.strerror}") from None
