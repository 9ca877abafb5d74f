"""The noise of a round on the disk: synced before its use, and its deletion synced before the model is published."""

from __future__ import annotations

from fedpatch.coordinator.privacy.noise_draw import SealedNoise
from tests.support.synced import record_syncs


def test_deletion_of_noise_is_synced_before_the_call_returns(tmp_path, monkeypatch):
    """After a power cut a reader could subtract noise that is on the disk again."""
    noise = SealedNoise(tmp_path)
    for number in (1, 2, 3):
        noise.of_round(number, size=4)
    synced = record_syncs(monkeypatch)
    noise.drop_until(2)
    assert synced == [tmp_path]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["noise-000003.fp"]
    noise.drop_until(2)
    assert synced == [tmp_path]  # nothing was deleted


def test_noise_is_synced_before_it_is_used(tmp_path, monkeypatch):
    synced = record_syncs(monkeypatch)
    drawn = SealedNoise(tmp_path).of_round(1, size=4)
    assert synced[-1] == tmp_path and len(synced) == 2
    assert SealedNoise(tmp_path).of_round(1, size=4).digest == drawn.digest
