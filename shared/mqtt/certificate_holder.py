"""The holder of the own certificate: one that fedpatch made for another fleet, part or device is refused."""

from __future__ import annotations

from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.certificate import Certificate
from fedpatch.shared.mqtt.tls_context import TlsFiles, certificates_of

HOLDER_REMEDY = "enrol with a bundle of this fleet, or correct the settings"


def check_holder(files: TlsFiles, fleet: str, part: str, name: str = "") -> None:
    """Raise UsageError if fedpatch made the own certificate for another fleet, part or name.

    Args:
        part: "coordinator" or "device".
        name: Expected name; empty: any.
    """
    own = next(iter(certificates_of(files.cert_file)), None)
    if own is not None and (problem := holder_problem(own, fleet, part, name)):
        raise UsageError(f"{files.cert_file} {problem}; {HOLDER_REMEDY}")


def holder_problem(own: Certificate, fleet: str, part: str, name: str) -> str:
    """Return the reason for which a certificate is refused; "" for the own one, or one that fedpatch did not make.

    Args:
        part: "coordinator" or "device".
        name: Expected name; empty: any.
    """
    holder = own.holder
    if holder is None:
        return ""
    if holder.fleet != fleet:
        return f"is a certificate for fleet {holder.fleet!r}, and this is fleet {fleet!r}"
    if holder.part != part:
        return f"is a certificate for a {holder.part}, and this is a {part}"
    if name and holder.name != name:
        return f"is a certificate for {holder.name!r}, and this is {name!r}"
    return ""
