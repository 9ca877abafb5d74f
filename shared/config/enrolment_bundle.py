"""The file that enrols a device: its name, its broker, and its credentials there. JSON, one file per device.

The file holds a key or a password, so a copy of it can act as the device. It has mode 0600; delete it after installation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import msgspec

from fedpatch.shared.config.fields import Name
from fedpatch.shared.errors import DataError

FORMAT = 1
MAX_BUNDLE_BYTES = 256 * 1024

_Pem = Annotated[str, msgspec.Meta(max_length=64 * 1024)]
_Text = Annotated[str, msgspec.Meta(max_length=500)]


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A device's identity: `certificate` and `key` as PEM, or `password`; with either, `ca` as PEM.

    If `broker` or `broker_profile` is empty, the device's settings decide the URL or the limits of a hosted broker.
    """

    fedpatch_bundle: int = FORMAT
    fleet: Name
    device: Name
    broker: _Text = ""
    broker_profile: _Text = ""
    ca: _Pem = ""
    certificate: _Pem = ""
    key: _Pem = ""
    password: _Text = ""

    def __repr__(self) -> str:
        return f"Bundle of {self.device} in fleet {self.fleet}"  # without its secrets


def encode_bundle(bundle: Bundle) -> bytes:
    """Return the content of the bundle's file."""
    return json.dumps(msgspec.to_builtins(bundle), indent=1).encode() + b"\n"


def decode_bundle(data: bytes, place: object) -> Bundle:
    """Return the bundle in the content of its file.

    Raises:
        DataError: The content is no bundle, or has no identity. The message names `place` and nothing of the content.
    """
    if len(data) > MAX_BUNDLE_BYTES:
        raise DataError(f"{place}: larger than any bundle; `fedpatch device add` makes one")
    try:
        found = msgspec.json.decode(data, type=Bundle)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise DataError(f"{place}: damaged, or not a bundle of a device; `fedpatch device add` makes one") from None
    if found.fedpatch_bundle != FORMAT:
        known = f"this fedpatch knows version {FORMAT}; install the version that made it"
        raise DataError(f"{place}: a bundle of version {found.fedpatch_bundle}, and {known}")
    if not found.password and not (found.certificate and found.key):
        raise DataError(
            f"{place}: neither a certificate with its key nor a password in it; make it anew with `fedpatch device add`"
        )
    return found
