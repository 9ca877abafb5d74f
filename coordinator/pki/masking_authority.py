"""The CA whose certificates sign the keys of masked groups. Its key must not be on the coordinator's machine."""

from __future__ import annotations

from pathlib import Path

from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.errors import FedpatchError, UsageError, WireError
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.wire.masking_messages import ThresholdRule

MASKING = "masking"
_KEY = "ca.key"


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
        return
    text = "the members of groups do not sign their keys, so a coordinator that lies could make members up"
    if (key := authority_key(settings)) is not None:
        text = f"{text}; so could everybody who reads {key}"
    checkup.warn(MASKING, text, "keep the CA on another machine, and use --threshold two_thirds")
