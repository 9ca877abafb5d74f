"""Checks of the own certificate: its owner, its dates, and the permissions of its key."""

from __future__ import annotations

import time

from fedpatch.shared.app.clock import is_synchronised
from fedpatch.shared.app.formatting import minute
from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.errors import UsageError, problem_and_remedy
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.mqtt.certificate import Certificate
from fedpatch.shared.mqtt.certificate_expiry import ends_soon, left_days
from fedpatch.shared.mqtt.certificate_holder import HOLDER_REMEDY, holder_problem
from fedpatch.shared.mqtt.key_file import key_problem
from fedpatch.shared.mqtt.tls_context import TlsFiles, certificates_of, tls_context
from fedpatch.shared.mqtt.url import parse_broker_url

NAME = "certificate"


def check_own_certificate(settings: BrokerSettings, part: str, name: str, checkup: Checkup) -> None:
    """Check `certificate`: key and certificate belong together, their owner, permissions of the key, and the dates.

    There is no finding without a certificate: a broker that requires one refuses the connection.

    Args:
        part: "coordinator" or "device".
        name: Expected name; empty: any.
    """
    files, broker = settings.tls_files, parse_broker_url(settings.broker)
    if files.cert_file is None or not broker.tls:
        return
    key_file = files.key_file or files.cert_file
    if open_key := key_problem(key_file):
        checkup.fail(NAME, *open_key)
        return
    try:
        tls_context(broker, TlsFiles(None, files.cert_file, files.key_file))
    except UsageError as error:
        checkup.fail(NAME, *problem_and_remedy(str(error)))
        return
    own = next(iter(certificates_of(files.cert_file)), None)
    if own is None:
        checkup.warn(NAME, f"{files.cert_file}: its certificate cannot be read", "enrol again")
    elif problem := holder_problem(own, settings.fleet, part, name):
        checkup.fail(NAME, f"{files.cert_file} {problem}", HOLDER_REMEDY)
    else:
        _check_dates(own, part, checkup)


def _check_dates(own: Certificate, part: str, checkup: Checkup) -> None:
    now = time.time()
    renew = "fedpatch ca coordinator" if part == "coordinator" else f"fedpatch device rotate {own.subject}, then enrol"
    text = f"for {own.subject!r}, by {own.issuer!r}"
    if own.standing(now) == "expired":
        checkup.fail(
            NAME, f"{text}; it has expired on {minute(own.not_after)}", f"{renew}; where it is not old, set the clock"
        )
    elif own.standing(now) == "not yet valid":
        text = f"{text}; it is not valid before {minute(own.not_before)}, and the clock says {minute(now)}"
        ahead = f"a time server has set the clock here, so that of the CA was ahead: set it there, then {renew}"
        checkup.fail(NAME, text, ahead if is_synchronised() else "set the clock (timedatectl)")
    elif ends_soon(own.not_after, now):
        checkup.warn(NAME, f"{text}; it is good for {left_days(own.not_after, now)} more days", renew)
    else:
        checkup.good(NAME, f"{text}; it is good until {minute(own.not_after)}, and only its owner reads the key")
