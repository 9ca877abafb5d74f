"""Readers of the files of differential privacy: the noise of a round, the accounts of coordinator and device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedpatch.coordinator.privacy.noise_draw import SealedNoise
from fedpatch.coordinator.privacy.privacy_account import ACCOUNT, PrivacyAccount
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME, DevicePrivacyAccount
from fedpatch.shared.errors import StateError
from fedpatch.shared.privacy.skellam import Release, epsilon_of_releases
from tests.fuzz.decoders import Decoder
from tests.fuzz.held_decoders import _Sealed

_NOISE = "noise-000001.fp"
_VALUES = 4


def privacy_decoders() -> Iterator[Decoder]:
    """Yield each reader twice: unchanged, and with a checksum that always fits its content."""
    for name, line, read, kept in (
        ("noise", b"fedpatch noise 1\n", _noise, _written(_NOISE, lambda at: SealedNoise(at).of_round(1, _VALUES))),
        ("privacy account", b"fedpatch privacy book 1\n", _book, _written(ACCOUNT, _write_book)),
        ("privacy account", b"fedpatch privacy ledger 1\n", _account, _written(ACCOUNT_NAME, _write_account)),
    ):
        yield Decoder(name, read, (StateError,), (kept,))
        content = kept[len(line) + 32 :]
        yield Decoder(f"sealed {name}", _Sealed(line, read), (StateError,), (content,), frugal=False)


def _noise(data: bytes, folder: Path) -> None:
    (folder / _NOISE).write_bytes(data)
    assert np.isfinite(SealedNoise(folder).of_round(1, _VALUES).values).all()


def _book(data: bytes, folder: Path) -> None:
    (folder / ACCOUNT).write_bytes(data)
    assert PrivacyAccount(folder).most_used >= 0


def _account(data: bytes, folder: Path) -> None:
    (folder / ACCOUNT_NAME).write_bytes(data)
    assert epsilon_of_releases(DevicePrivacyAccount(folder).releases(), 1e-5) >= 0


def _write_book(folder: Path) -> None:
    PrivacyAccount(folder).note("ab" * 32, ["pi-1", "pi-2"])


def _write_account(folder: Path) -> None:
    DevicePrivacyAccount(folder).count("home", "run-1", "digits", "ab" * 32, Release(1.6))


def _written(name: str, write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
        return (Path(place) / name).read_bytes()
