"""The CA whose certificates sign the keys of masked groups. Its key must not be on the coordinator's machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.errors import FedpatchError, UsageError, WireError
from fedpatch.shared.masking.revocation import RevocationList, read_revocations
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.wire.masking_messages import ThresholdRule

MASKING = "masking"
REVOCATIONS = "revocations"
CRL = "ca.crl"
WARN_DAYS = 7
_KEY = "ca.key"
_COPY = f"make {CRL} with `fedpatch ca crl` where the CA's key is, and copy it to this machine"

_log = logging.getLogger("fedpatch.masking")


def authority_key(settings: RunSettings) -> Path | None:
    """Return the CA's key on the coordinator's machine; None where it is kept elsewhere."""
    beside = [settings.ca_file.absolute().parent] if settings.ca_file is not None else []
    return next((key for one in (settings.ca_directory, *beside) if (key := one / _KEY).exists()), None)


def masking_authorities(settings: RunSettings) -> Authorities | None:
    """Return the CAs whose certificates sign the keys of masked groups; None where keys need no signature.

    Raises:
        UsageError: Keys must be signed, but the CA is unknown, or its key is here, so that the coordinator could make up
            members.
    """
    if not settings.masked or settings.threshold != ThresholdRule.TWO_THIRDS:
        return None
    if settings.ca_file is None:
        raise UsageError(
            "masked groups need the fleet's CA, whose certificates sign the devices' keys (threshold = two_thirds); set "
            "ca_file, or choose threshold = half, which hides updates from an honest coordinator only"
        )
    if (key := authority_key(settings)) is not None:
        raise UsageError(
            f"{key}: with the CA's key on this machine a coordinator can make up members of masked groups, so two_thirds "
            "promises nothing; keep the CA on another machine (docs/how-to/security.md), or choose threshold = half, which "
            "hides updates from an honest coordinator only"
        )
    with refusals_of(settings.ca_file):
        pem = settings.ca_file.read_bytes()
    try:
        return Authorities.of_pem(settings.fleet, pem)
    except WireError as error:
        raise UsageError(f"{settings.ca_file}: {error}") from None


class RevocationSource:
    """The CA's list of revoked certificates, `ca.crl` in the copy of the CA's directory or beside `ca_file`.

    Args:
        settings: Settings of the run.
        authorities: CAs of the fleet.
        unix_time: Returns the unix time, in seconds.
    """

    def __init__(
        self, settings: RunSettings, authorities: Authorities, unix_time: Callable[[], float] = time.time
    ) -> None:
        beside = [settings.ca_file.absolute().parent] if settings.ca_file is not None else []
        self.paths = [one / CRL for one in (settings.ca_directory, *beside)]
        self._authorities = authorities
        self._unix_time = unix_time
        self._last: RevocationList | None = None
        self._asked = False

    def latest(self) -> RevocationList | None:
        """Return the list with the highest number; None where there is none.

        A list that cannot be read later in the run does not replace the last one.

        Raises:
            UsageError: The first list cannot be read, or has ended.
        """
        try:
            found = [self._read(path) for path in self.paths if path.exists()]
        except UsageError as error:
            if self._last is None:
                raise
            _log.warning("%s; list %d stays in use", error, self._last.number)
            return self._last
        # Devices are chosen by the first answer: without a list at the start, none is sent in this run.
        if found and (self._last is not None or not self._asked):
            self._last = max(found, key=lambda one: one.number)
        self._asked = True
        return self._last

    def _read(self, path: Path) -> RevocationList:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding

        try:
            with refusals_of(path):
                der = x509.load_pem_x509_crl(path.read_bytes()).public_bytes(Encoding.DER)
            found = read_revocations(der, self._authorities)
            found.require_current(self._unix_time())
        except (WireError, ValueError) as error:
            raise UsageError(f"{path}: {error}") from None
        return found


def revocation_source(settings: RunSettings) -> Callable[[], RevocationList | None]:
    """Return the function that reads the list at the begin of each round; one that returns None where keys are not signed."""
    authorities = masking_authorities(settings)
    return no_revocations if authorities is None else RevocationSource(settings, authorities).latest


def require_revocations(settings: RunSettings) -> None:
    """Check the list of a run whose devices sign their keys, and log where there is none.

    Raises:
        UsageError: As of `masking_authorities`; or the list cannot be read, or has ended.
    """
    authorities = masking_authorities(settings)
    if authorities is not None and RevocationSource(settings, authorities).latest() is None:
        _log.warning("there is no %s, so devices cannot leave out members with a revoked certificate; %s", CRL, _COPY)


def no_revocations() -> None:
    """Return no list."""


def _check_revocations(settings: RunSettings, authorities: Authorities, checkup: Checkup) -> None:
    """Run the check `revocations` of a strict run: whether there is a list, and for how long it counts."""
    try:
        found = RevocationSource(settings, authorities).latest()
    except UsageError as error:
        checkup.fail(REVOCATIONS, str(error), _COPY)
        return
    if found is None:
        text = f"there is no {CRL}, so devices cannot leave out members with a revoked certificate"
        checkup.warn(REVOCATIONS, text, _COPY)
    elif (left_s := found.ends - time.time()) < WARN_DAYS * 86_400:
        text = (
            f"list {found.number} ends in {left_s / 86_400:.0f} days; then devices decline each round with signed keys"
        )
        checkup.warn(REVOCATIONS, text, f"renew the CA (`fedpatch ca renew`); {_COPY}")
    else:
        checkup.good(REVOCATIONS, f"list {found.number} has {len(found.serials)} revoked certificates")


def check_masking(settings: RunSettings, checkup: Checkup) -> None:
    """Run the check `masking` of a masked run: whether anybody could make up members of its groups."""
    if not settings.masked:
        return
    try:
        authorities = masking_authorities(settings)
    except FedpatchError as error:
        checkup.fail(MASKING, str(error), "move the CA to another machine, or take threshold = half")
        return
    if authorities is not None:
        checkup.good(MASKING, "the members of groups sign their keys, and the CA's key is not here")
        _check_revocations(settings, authorities, checkup)
        return
    text = "the members of groups do not sign their keys, so a coordinator that lies could make members up"
    if (key := authority_key(settings)) is not None:
        text = f"{text}; so could everybody who reads {key}"
    checkup.warn(MASKING, text, "keep the CA on another machine, and use --threshold two_thirds")
