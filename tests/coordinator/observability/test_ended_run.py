"""The last metrics of a run that has ended."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedpatch.coordinator.observability.ended_run import ended_metrics, keeper
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError
from tests.coordinator.registry_builders import new_run
from tests.monitoring.prometheus import fetch

exposition = pytest.importorskip("prometheus_client")

GOOD = RoundRecord(
    2,
    "aggregated",
    cohort=3,
    accepted=3,
    declined=0,
    reported=3,
    user_accuracy=0.9,
    user_accuracy_p10=0.7,
    user_accuracy_min=0.5,
    user_accuracy_after=0.95,
    phase_seconds=PhaseSeconds(train=1.5),
    deadline_s=60.0,
)
MISSED = RoundRecord(1, "failed", cohort=3, accepted=1, declined=2, reported=0, failure="too_few_accepted")
MEASURED = RoundRecord(
    3, "evaluated", cohort=3, accepted=3, declined=0, reported=3, user_accuracy=0.8, user_accuracy_p10=0.6, measured=3
)
INFO = RunInfo(
    id="r1",
    created_at=0.0,
    task="digits",
    strategy="fedavg",
    private="none",
    settings={"rounds": 9},
    schema="",
    epoch=1,
    status="finished",
    stopped_because="target_ua",
    user_accuracy=0.9,
    model=None,
)


def _text(*records: RoundRecord) -> str:
    written: bytes = exposition.generate_latest(ended_metrics(INFO, records))
    return written.decode()


def test_ended_run_has_the_figures_of_its_last_rounds_and_the_reason_of_its_end():
    text = _text(MISSED, GOOD, MEASURED)
    for line in (
        'fedpatch_run_ended{reason="target_ua"} 1.0',
        'fedpatch_run_ended{reason="max_rounds"} 0.0',
        'fedpatch_run_info{goal="max",metric="accuracy",run="r1",strategy="fedavg",task="digits"} 1.0',
        "fedpatch_round_number 3.0",
        "fedpatch_rounds_planned 9.0",
        "fedpatch_round_open 0.0",
        'fedpatch_rounds_total{outcome="aggregated"} 1.0',
        'fedpatch_rounds_total{outcome="too_few_accepted"} 1.0',
        'fedpatch_user_accuracy{moment="before",stat="mean"} 0.9',
        'fedpatch_user_accuracy{moment="before",stat="min"} 0.5',
        'fedpatch_user_accuracy{moment="after",stat="mean"} 0.95',
        'fedpatch_evaluation{stat="mean"} 0.8',
        "fedpatch_round_seconds_sum 1.5",
    ):
        assert f"\n{line}\n" in text, line


def test_ended_run_has_no_metrics_of_devices_broker_or_disk():
    """Their last values would fire alerts for as long as they are served."""
    names = set(re.findall(r"^(fedpatch_\w+)", _text(GOOD), re.MULTILINE))
    assert not {name for name in names if re.match(r"fedpatch_(devices?|broker|state|certificate)(_|$)", name)}


def test_run_that_ended_before_its_first_round_has_metrics():
    assert "\nfedpatch_round_number 0.0\n" in _text()


def test_run_that_has_not_ended_has_no_last_metrics(tmp_path):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, 1.0)
    with pytest.raises(UsageError, match=r"is running: only a finished run has last metrics"):
        ended_metrics(run, ())


def test_coordinator_keeps_no_metrics_without_an_address_or_at_one_that_is_in_use(tmp_path):
    """The run has succeeded, so its process must not fail afterwards."""
    assert keeper(None, "r1", tmp_path) == []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert keeper(f"127.0.0.1:{taken.getsockname()[1]}", "r1", tmp_path) == []
    command = keeper("127.0.0.1:0", "r1", tmp_path)
    assert command[3:] == ["fedpatch", "metrics", "r1", "--serve", "127.0.0.1:0", "--state-dir", str(tmp_path)]


@pytest.mark.medium
@pytest.mark.parametrize("keep", [True, False])
def test_run_that_is_done_serves_its_last_metrics_until_a_signal_if_it_keeps_them(tmp_path, keep):
    """As the service does after a boot: no broker is needed. SIGTERM is no failure."""
    settings = {"broker": "mqtt://127.0.0.1:1", "metrics": "127.0.0.1:0"}
    _finished(tmp_path, settings)
    options = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "fedpatch", "run", "--unless-done", f"--state-dir={tmp_path}", *options]
    if not keep:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return
    with subprocess.Popen(
        [*command, "--keep-metrics"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            url = next(line for line in lines if line.startswith("last metrics of run ")).split()[-1]
            assert '\nfedpatch_run_ended{reason="target_ua"} 1.0\n' in fetch(url)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def _finished(state_dir: Path, settings: dict[str, str]) -> None:
    """A finished run with the settings that the command has."""
    from fedpatch.coordinator.runtime.start_run import with_absolute_paths
    from fedpatch.coordinator.settings import RunSettings
    from fedpatch.shared.config.load import load, public_values

    loaded = load(RunSettings, file=None, environ={}, flags={**settings, "state_dir": state_dir})
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, 1.0, task=loaded.task, settings=public_values(with_absolute_paths(loaded))).id
        registry.rounds.finish(run, GOOD)
        registry.finish_run(run, stopped_because="target_ua", user_accuracy=0.9, model="")
