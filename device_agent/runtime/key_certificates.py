"""Signing of masking keys with the device's certificate, and the check of other devices' keys against the fleet's CA."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from fedpatch.shared.config.secret_file import forbidden_mode
from fedpatch.shared.errors import WireError
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
        unix_time: Returns the time at which certificates of others must be valid, in unix seconds.

    Raises:
        WireError: A file cannot be read, or keys are not those of the device that they name; here and in each method.
    """

    def __init__(self, files: TlsFiles, device: str, fleet: str, unix_time: Callable[[], float] = time.time) -> None:
        self._files, self._device, self._fleet = files, device, fleet
        self._unix_time = unix_time
        self._authorities: tuple[bytes, Authorities] | None = None

    @staticmethod
    def of(files: TlsFiles, device: str, fleet: str) -> CertificateFiles | None:
        """Return the certificates of a device; None where it has no certificate, or trusts the system's CAs.

        Args:
            files: Its TLS files.
            device: Id of the device.
            fleet: Name of its fleet.
        """
        return CertificateFiles(files, device, fleet) if files.cert_file and files.ca_file else None

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
        """Check that another member has signed its keys."""
        check_signed_keys(member.device, member.keys, request, self._trusted(), self._unix_time())

    def _trusted(self) -> Authorities:
        assert self._files.ca_file is not None
        pem = _read(self._files.ca_file)
        if self._authorities is None or self._authorities[0] != pem:
            self._authorities = pem, Authorities.of_pem(self._fleet, pem)
        return self._authorities[1]


def _read(path: Path, *, private: bool = False) -> bytes:
    try:
        if private and path.stat().st_mode & forbidden_mode(path):
            raise WireError(f"{path} is open to other users, who could sign for this device; chmod 600 {path}")
        return path.read_bytes()
    except OSError as error:
        raise WireError(f"{path}: {error.strerror}") from None
