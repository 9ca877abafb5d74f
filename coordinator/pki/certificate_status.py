"""The state of all that a CA has issued, for lists and for `fedpatch doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.pki.issued_certificates import COORDINATOR, DEVICE, PASSWORD, Entry, Index, read_index
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.formatting import minute
from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.mqtt.certificate_expiry import WARN_DAYS
from fedpatch.shared.mqtt.key_file import key_problem
from fedpatch.shared.mqtt.tls_context import certificates_of

_DAY_S = 86_400
_SHOWN = 5


@dataclass(frozen=True)
class IdentityRow:
    """One holder with its valid, or last, certificate. `expires_at` is None for a password."""

    part: str
    name: str
    kind: str
    state: str
    expires_at: int | None
    revoked_at: int | None
    reason: str
    serial: str
    others_good: int


def rows(index: Index, now: float, *parts: str) -> list[IdentityRow]:
    """Return all holders of these parts, sorted by part and name."""
    found = dict.fromkeys((one.part, one.name) for one in index.entries if not parts or one.part in parts)
    return [_row(index.of(*holder), now) for holder in sorted(found)]


def _row(entries: tuple[Entry, ...], now: float) -> IdentityRow:
    good = [one for one in entries if one.good(now)]
    one = next((one for one in reversed(entries) if not one.revoked_at), entries[-1])
    state = "revoked" if one.revoked_at else "good" if one.good(now) else "expired"
    return IdentityRow(
        part=one.part,
        name=one.name,
        kind=one.kind,
        state=state,
        expires_at=None if one.kind == PASSWORD else one.not_after,
        revoked_at=one.revoked_at or None,
        reason=one.reason,
        serial=one.serial,
        others_good=len([other for other in good if other is not one]),
    )


def check_authority(settings: RunSettings, checkup: Checkup) -> None:
    """Run the check `identities`: the CA, its key, and certificates that expire soon; nothing where there is no CA."""
    directory = settings.ca_directory
    try:
        index = read_index(directory)
    except FedpatchError as error:
        checkup.fail("identities", str(error), "put the directory of the CA back from a backup")
        return
    if index is None:
        return
    if index.fleet != settings.fleet:
        text = f"{directory} is the CA of fleet {index.fleet!r}, and this is fleet {settings.fleet!r}"
        checkup.warn("identities", text, "name the CA of this fleet with --ca-dir")
        return
    problem = key_problem(directory / "ca.key") if (directory / "ca.key").exists() else None
    if problem:
        checkup.fail("identities", *problem)
        return
    now = time.time()
    endings, beginnings = list(_endings(directory, index, now)), list(_beginnings(directory, index, now))
    devices = rows(index, now, DEVICE)
    revoked = sum(one.state == "revoked" for one in devices)
    text = f"the CA of fleet {index.fleet!r} knows {len(devices)} devices, {revoked} of them revoked"
    if beginnings:
        clock = "set the clock (timedatectl); if it is right, it was ahead when they were made: make them anew"
        remedy = f"{clock} (fedpatch ca init in another directory, ca coordinator, ca broker, device rotate ID)"
        checkup.fail("identities", f"{text}; {_first(beginnings)}", remedy)
    elif endings:
        remedy = "renew them: fedpatch device rotate ID, fedpatch ca coordinator, fedpatch ca broker, fedpatch ca renew"
        checkup.warn("identities", f"{text}; {_first(endings)}", remedy)
    else:
        checkup.good("identities", f"{text}; nothing of it expires within {WARN_DAYS} days")


def _first(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN])}{more}"


def _beginnings(directory: Path, index: Index, now: float) -> Iterator[str]:
    """Yield the CA and the holders whose last certificate is not yet valid, as of a clock that was ahead once."""
    for one in certificates_of(directory / "ca.crt"):
        if one.not_before > now:
            yield f"the CA is not valid before {minute(one.not_before)}"
    last = {(one.part, one.name): one for one in index.entries if not one.revoked_at and one.kind != PASSWORD}
    for entry in last.values():
        if entry.not_before > now:
            yield f"{entry.part} {entry.name} is not valid before {minute(entry.not_before)}"


def _endings(directory: Path, index: Index, now: float) -> Iterator[str]:
    for one in certificates_of(directory / "ca.crt"):
        if one.not_after < now + WARN_DAYS * _DAY_S:
            yield f"the CA {_in_words(one.not_after, now)}"
    for row in rows(index, now):
        if row.state != "revoked" and row.expires_at is not None and row.expires_at < now + WARN_DAYS * _DAY_S:
            what = row.name if row.part in (DEVICE, COORDINATOR) else f"{row.part} {row.name}"
            yield f"{what} {_in_words(row.expires_at, now)}"


def _in_words(ends: float, now: float) -> str:
    days = int((ends - now) // _DAY_S)
    return "has expired" if ends <= now else f"expires in {days} days"
