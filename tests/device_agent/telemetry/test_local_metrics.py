"""The metrics of an agent for its owner: the table of docs/reference/metrics.md, at a real endpoint and in a file."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.usage import Usage
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.telemetry.gauges import Gauges
from fedpatch.device_agent.telemetry.local_metrics import LOOK_EVERY_S, LocalMetrics
from fedpatch.device_agent.telemetry.vitals import RoundTimes
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError
from tests.device_agent.exported_models import publish
from tests.device_agent.jobs import KEY, uploading
from tests.device_agent.owners import WELL, Pocketbook, facts, owner_of
from tests.monitoring.prometheus import fetch, lint
from tests.support.documented_metrics import documented, served
from tests.support.specs import TASK, report

LIMITS = {"max_rounds_per_day": 5, "max_mib_per_day": 3, "max_minutes_per_day": 2}


class Bench:
    """An agent's owner, times and models, and their metrics."""

    def __init__(self, folder: Path, admission: str = "preferences", **given: Any) -> None:
        self.book = Pocketbook()
        self.owner = owner_of(self.book, admission, charging=True)
        self.times = RoundTimes()
        self.models = ModelStore(folder / "models", 3)
        settings = load(AgentSettings, file=None, environ={}, flags={"data": "shard:0/1", **LIMITS, **given})
        self.metrics = LocalMetrics(settings, "pi", self.owner, self.times, self.models)
        self.job = Job(max_blob_bytes=10_000)

    def look(self, now: float, *, connected: bool = True, task: str = TASK) -> None:
        self.metrics.look(self.job, connected=connected, task=task, now=now)

    def value(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.metrics.text()):
            for sample in family.samples:
                if (sample.name, sample.labels) == (f"fedpatch_agent_{name}", labels):
                    return sample.value
        return None


@pytest.fixture
def bench(tmp_path) -> Iterator[Bench]:
    """A bench that serves at a free port."""
    made = Bench(tmp_path, metrics="127.0.0.1:0")
    yield made
    made.metrics.stop()


def _publish(bench: Bench, round_number: int, accuracy: float) -> None:
    assert publish(bench.models, round_number, task=TASK, user_accuracy=accuracy)


def test_an_endpoint_has_every_documented_metric_and_no_other(tmp_path, caplog):
    """All facts of the agent are known; promtool accepts the text. Only the certificate is missing, without a ca_file."""
    with caplog.at_level(logging.INFO, "fedpatch.metrics"):
        bench = Bench(tmp_path, metrics="127.0.0.1:0")
    bench.owner.update_facts(replace(WELL, clock_set=facts().clock_set), bench.job, [TASK], 0.0)
    bench.times.trained(KEY, report(0.5))
    bench.times.committed(KEY, 3.0)
    _publish(bench, 1, 0.875)
    bench.look(5.0)
    try:
        text = fetch(caplog.messages[0].removeprefix("metrics: "))
    finally:
        bench.metrics.stop()
    expected = documented(agent=True)
    assert served(text) == {
        name: rest for name, rest in expected.items() if name != "fedpatch_agent_certificate_expiry_timestamp_seconds"
    }
    assert lint(text) == ""
    gauges = Gauges(
        info=(("device", 'a "quoted"\\ \n name'),),
        state=bench.job.state,
        paused=False,
        round=0,
        connected=True,
        willing=None,
        allowance=load(AgentSettings, file=None, environ={}, flags={"data": "x"}),
        expiry=(("ca", 1.9e9),),
    )
    more = served(gauges.text())
    assert (
        "fedpatch_agent_certificate_expiry_timestamp_seconds" in more
        and more.items()
        <= {
            **expected,
            "fedpatch_agent_info": ("gauge", frozenset({"device"})),
        }.items()
    )
    assert lint(gauges.text()) == ""


def test_gauges_follow_the_state_of_the_agent(bench):
    bench.owner.update_facts(
        facts(external_power=False, temperature_c=61.5, battery_percent=40.0), bench.job, [TASK], 0.0
    )
    bench.book.note(Usage(2, 1_000_000, 30.0))
    bench.look(1.0, connected=False)
    for name, labels, value in (
        ("state", {"state": "idle"}, 1),
        ("state", {"state": "uploading"}, 0),
        ("round_number", {}, 0),
        ("broker_connected", {}, 0),
        ("willing", {}, 0),
        ("objection", {"condition": "not_charging"}, 1),
        ("objection", {"condition": "too_hot"}, 0),
        ("external_power", {}, 0),
        ("temperature_celsius", {}, 61.5),
        ("battery_ratio", {}, 0.4),
        ("free_memory_bytes", {}, 900 * 2**20),
        ("link", {"kind": "wifi"}, 1),
        ("rounds_today", {}, 2),
        ("rounds_allowed_today", {}, 5),
        ("traffic_today_bytes", {}, 1_000_000),
        ("downloaded_bytes", {"way": "mqtt"}, 0),
        ("downloaded_bytes", {"way": "url"}, 0),
        ("traffic_allowed_today_bytes", {}, 3 * 2**20),
        ("training_today_seconds", {}, 30),
        ("training_allowed_today_seconds", {}, 120),
        ("user_accuracy", {"moment": "before"}, None),
    ):
        assert bench.value(name, **labels) == value, (name, labels)
    bench.job = uploading()
    bench.look(3.0)
    assert (bench.value("state", state="uploading"), bench.value("round_number")) == (1, KEY.round)


@pytest.mark.parametrize(("admission", "willing"), [("always", 1), ("never", 0), ("file:/nowhere", None)])
def test_an_order_that_asks_no_facts_has_its_own_answer(tmp_path, admission, willing):
    bench = Bench(tmp_path, admission)
    bench.owner.update_facts(facts(external_power=False), bench.job, [TASK], 0.0)
    bench.look(1.0)
    assert bench.value("willing") == willing
    assert bench.value("external_power") == 0


def test_unknown_fact_has_no_series(bench):
    bench.look(1.0, task="")
    for name in ("temperature_celsius", "willing", "last_round_train_seconds", "model_user_accuracy"):
        assert bench.value(name) is None
    assert bench.value("link", kind="wifi") is None
    assert bench.value("state", state="idle") == 1


def test_the_last_round_and_the_model_in_use(bench):
    bench.times.trained(KEY, report(0.5))
    bench.times.sends(10.0)
    bench.times.committed(KEY, 12.5)
    _publish(bench, 1, 0.75)
    _publish(bench, 2, 0.875)
    bench.look(13.0)
    assert bench.value("last_round_upload_seconds") == 2.5
    assert bench.value("user_accuracy", moment="before") == 0.5
    assert bench.value("model_user_accuracy") == 0.875
    made_at = bench.value("model_timestamp_seconds")
    assert made_at is not None and made_at > 1e9
    bench.models.roll_back(TASK)
    bench.look(13.0 + LOOK_EVERY_S)
    assert bench.value("model_user_accuracy") == 0.75


def test_turns_of_the_loop_within_a_second_are_one_look(bench):
    bench.look(1.0)
    assert bench.metrics.next_deadline() is None
    bench.look(1.5, connected=False)
    assert bench.value("broker_connected") == 1
    assert bench.metrics.next_deadline() == 1.0 + LOOK_EVERY_S
    bench.look(1.0 + LOOK_EVERY_S, connected=False)
    assert (bench.value("broker_connected"), bench.metrics.next_deadline()) == (0, None)


def test_a_port_that_is_taken_costs_a_line_and_not_the_agent(tmp_path, caplog):
    path = tmp_path / "fedpatch.prom"
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING, "fedpatch.metrics"):
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        bench = Bench(tmp_path, metrics=address, metrics_textfile=str(path))
    (line,) = caplog.messages
    assert line.startswith(f"no metrics: cannot listen on {address}: ") and "--metrics" in line
    bench.look(1.0)
    assert path.read_text("utf-8") == bench.metrics.text()
    assert lint(path.read_text("utf-8")) == ""
    bench.metrics.stop()
    assert not path.exists()


@pytest.mark.parametrize(
    ("setting", "words"), [({"metrics": "9465"}, "HOST:PORT"), ({"metrics_textfile": "/x/metrics.txt"}, "[.]prom")]
)
def test_settings_that_cannot_work_are_refused(setting, words):
    with pytest.raises(ConfigError, match=words):
        load(AgentSettings, file=None, environ={}, flags={"data": "x", **setting})


def test_nothing_is_served_or_written_unless_asked_for():
    defaults = load(AgentSettings, file=None, environ={}, flags={"data": "x"})
    assert (defaults.metrics, defaults.metrics_textfile, defaults.share_vitals) == (None, None, True)
    assert (
        json.dumps(load(AgentSettings, file=None, environ={}, flags={"data": "x", "metrics": "none"}).metrics) == "null"
    )


def test_a_host_that_cannot_be_a_name_costs_a_line_and_not_the_agent(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedpatch.metrics"):
        bench = Bench(tmp_path, metrics=f"{'a' * 64}.local:0")
        bench.look(1.0)
    (line,) = caplog.messages
    assert line.startswith("no metrics: cannot listen on ") and "--metrics" in line
