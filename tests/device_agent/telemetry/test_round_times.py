"""The times of the last round, by the device's own clock."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.telemetry.vitals import RoundTimes
from fedpatch.shared.wire.vitals import LastRound
from tests.support.specs import report

KEY = JobKey("r", 1, 3, "digits")
REPORT = replace(report(0.5), train_s=20.0)


def test_an_upload_lasts_from_its_first_chunk_until_it_is_committed():
    times = RoundTimes()
    times.downloaded["url"] = 70
    times.trained(KEY, REPORT)
    for now in (5.0, 6.0, 7.5):
        times.sends(now)
    assert times.last is None
    times.committed(replace(KEY, epoch=2), 8.0)
    assert times.last == LastRound("r", 3, 20.0, 3.0, mqtt_bytes=0, url_bytes=70)
    assert times.report == REPORT


def test_an_update_that_was_there_already_took_no_time():
    times = RoundTimes()
    times.trained(KEY, REPORT)
    times.sends(5.0)
    times.trained(replace(KEY, round=4), REPORT)
    times.committed(replace(KEY, round=4), 9.0)
    assert times.last == LastRound("r", 4, 20.0, 0.0, 0, 0)


def test_update_from_before_a_restart_has_no_round_times():
    times = RoundTimes()
    times.sends(5.0)
    times.committed(KEY, 8.0)
    times.trained(KEY, REPORT)
    times.committed(replace(KEY, run="other"), 9.0)
    assert times.last is None
