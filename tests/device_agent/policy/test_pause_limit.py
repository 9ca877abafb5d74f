"""The limit of a pause."""

from __future__ import annotations

from fedpatch.device_agent.policy.pause_limit import PauseTimer


def test_pause_expires_at_its_limit_unless_it_has_ended():
    pause = PauseTimer(100.0)
    assert pause.next_deadline() is None and not pause.has_expired(1e9)
    pause.begin(10.0)
    assert pause.next_deadline() == 110.0
    assert [pause.has_expired(now) for now in (109.9, 110.0)] == [False, True]
    pause.end()
    assert pause.next_deadline() is None and not pause.has_expired(1e9)
