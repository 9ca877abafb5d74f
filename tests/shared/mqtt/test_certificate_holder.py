"""Holders of certificates that are refused."""

from __future__ import annotations

import pytest

from fedpatch.shared.mqtt.certificate import Certificate, CertificateOwner
from fedpatch.shared.mqtt.certificate_holder import holder_problem


@pytest.mark.parametrize(
    ("holder", "problem"),
    [
        (None, ""),
        (CertificateOwner("kitchen", "device", "pi-1"), ""),
        (
            CertificateOwner("garden", "device", "pi-1"),
            "is a certificate for fleet 'garden', and this is fleet 'kitchen'",
        ),
        (
            CertificateOwner("kitchen", "coordinator", "pi-1"),
            "is a certificate for a coordinator, and this is a device",
        ),
        (CertificateOwner("kitchen", "device", "pi-2"), "is a certificate for 'pi-2', and this is 'pi-1'"),
    ],
    ids=["not made by fedpatch", "own", "other fleet", "other part", "other name"],
)
def test_certificate_of_another_holder_is_refused_with_both_holders_in_words(holder, problem):
    own = Certificate("pi-1", "CA", 1, 0.0, 1.0, is_ca=False, holder=holder, sha256="")
    assert holder_problem(own, "kitchen", "device", "pi-1") == problem


def test_any_name_of_the_fleet_is_accepted_where_none_is_expected():
    own = Certificate(
        "pi-2", "CA", 1, 0.0, 1.0, is_ca=False, holder=CertificateOwner("kitchen", "device", "pi-2"), sha256=""
    )
    assert holder_problem(own, "kitchen", "device", "") == ""
