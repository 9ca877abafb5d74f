"""A real Prometheus reads the metrics of a real run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.device_agent.sensors.scenes import Scene
from tests.monitoring.prometheus import PATIENCE_S, Prometheus, fetch, lint, scraping
from tests.support.brokers import HOST, Mosquitto, free_port
from tests.support.documented_metrics import documented, served
from tests.system.commands import Command
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

DEVICES = ("ann", "bob")
ENOUGH_ROUNDS = 5
LIMITS = ["--max-rounds-per-day", "1000000", "--max-mib-per-day", "1000000", "--max-minutes-per-day", "1440"]


@dataclass
class Watched:
    """A run without an end, and its watchers; `ann_url` is the endpoint of one of its agents, which also writes `ann_file`."""

    url: str
    ann_url: str
    ann_file: Path
    prometheus: Prometheus

    def samples(self) -> dict[str, float]:
        """Scrape the metrics once; return the sums over all labels by name."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(fetch(self.url)):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def wait_rounds(self, least: int = ENOUGH_ROUNDS) -> None:
        query = 'fedpatch_rounds_total{outcome="aggregated"}'
        self.prometheus.wait_until(lambda: (self.prometheus.value(query) or 0) >= least, f"has seen {least} rounds")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One run for all tests; its rounds follow one another without a pause."""
    directory = tmp_path_factory.mktemp("fleet")
    target = f"{HOST}:{free_port()}"
    options = ["--task", "digits", "--devices", len(DEVICES), "--rounds", 1_000_000, "--quorum", 1]
    ann_target, ann_file = f"{HOST}:{free_port()}", directory / "ann.prom"
    scene = Scene(directory / "machine")
    scene.whole()
    with (
        Prometheus(scraping(target, ann_target)) as prometheus,
        Mosquitto() as broker,
        Fleet(broker.url, directory) as fleet,
    ):
        more = {"ann": ["--metrics", ann_target, "--metrics-textfile", str(ann_file), *LIMITS]}
        for index, device in enumerate(DEVICES):
            given = ["--conditions-root", str(scene.root), *more.get(device, ())]
            fleet.start(device, "digits", f"shard:{index}/{len(DEVICES)}", options=given)
        fleet.wait_ready()
        options += ["--broker", broker.url, "--fleet", fleet.name, "--state-dir", directory / "state"]
        with Command("fedpatch", "run", *options, "--metrics", target) as run:
            run.wait(lambda: "round 1/" in run.err, "has played a round")
            assert f"metrics: http://{target}/metrics" in run.err
            yield Watched(f"http://{target}/metrics", f"http://{ann_target}/metrics", ann_file, prometheus)
            done = run.interrupt()
        fleet.agents["ann"].terminate()
        assert not ann_file.exists()
    assert "Traceback" not in done.err


def test_prometheus_has_every_documented_metric(watched):
    """All names of both tables and no others, except those of certificates, evaluate rounds and relays: the run has none."""
    watched.wait_rounds()
    expected = set(documented(agent=True)) - {"fedpatch_agent_certificate_expiry_timestamp_seconds"}
    for name, (kind, _) in documented().items():
        expected |= {f"{name}_{end}" for end in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    expected -= {
        "fedpatch_certificate_expiry_timestamp_seconds",
        "fedpatch_device_site_devices",
        "fedpatch_evaluation",
    }

    def has_all() -> bool:
        names = set(watched.prometheus.get("label/__name__/values"))
        return {name for name in names if name.startswith(("fedpatch_", "process_"))} == expected

    watched.prometheus.wait_until(has_all, "has every documented metric and no others")


def test_endpoint_of_a_run_passes_promtool(watched):
    assert lint(fetch(watched.url)) == ""


def test_agent_exports_its_state_by_endpoint_and_file(watched):
    watched.wait_rounds()
    assert lint(fetch(watched.ann_url)) == ""
    assert served(watched.ann_file.read_text("utf-8")).items() <= documented(agent=True).items()
    for fact, expected in {
        "fedpatch_agent_broker_connected": 1,
        "fedpatch_agent_willing": 1,
        "sum(fedpatch_agent_state)": 1,
        "fedpatch_agent_rounds_allowed_today": 1_000_000,
        "fedpatch_agent_temperature_celsius": 48.25,
        "fedpatch_agent_link{kind='loopback'}": 1,
        "fedpatch_agent_rounds_today > bool 1": 1,
        "fedpatch_agent_model_user_accuracy > bool 0": 1,
    }.items():
        watched.prometheus.wait_until(
            lambda fact=fact, expected=expected: watched.prometheus.value(fact) == expected,
            f"has {expected} for {fact}",
        )


def test_metrics_count_updates_devices_and_bytes(watched):
    watched.wait_rounds()
    ask = watched.prometheus.value
    committed, rounds = "sum(fedpatch_updates_total)", "sum(fedpatch_rounds_total)"

    def agree() -> bool:
        more = ask(f"{committed} - {len(DEVICES)} * {rounds}")
        # Updates of the open round, and of a round that ended between the two scrapes.
        return more is not None and 0 <= more <= 2 * len(DEVICES)

    watched.prometheus.wait_until(agree, "has as many updates as rounds and devices make")
    for fact, expected in {
        "sum(fedpatch_devices)": len(DEVICES),
        "fedpatch_broker_connected": 1,
        "fedpatch_leader": 1,
        "fedpatch_leader_epoch": 0,
        "count(fedpatch_device_round_seconds > 0)": len(DEVICES),
        "count(fedpatch_device_state == 1)": len(DEVICES),
        "count(fedpatch_user_accuracy > 0)": 6,
        "fedpatch_devices_without_series": 0,
        "fedpatch_rounds_failed_in_a_row": 0,
        "sum(fedpatch_failures_total) + sum(fedpatch_declines_total)": 0,
        "count(fedpatch_round_phase_seconds_count > 0)": 10,
        "fedpatch_devices_showing{sign='reporting'}": len(DEVICES),
        "count(fedpatch_device_temperature_celsius == 48.25 or fedpatch_device_temperature_celsius == 48.2)": len(
            DEVICES
        ),
        "count(fedpatch_device_upload_seconds >= 0)": len(DEVICES),
        "count(fedpatch_bytes_total > 0)": 6,
        "fedpatch_downloaded_bytes_total{way='mqtt'} > bool 0": 1,
    }.items():
        watched.prometheus.wait_until(
            lambda fact=fact, expected=expected: ask(fact) == expected, f"has {expected} for {fact}"
        )


def test_phases_of_rounds_add_up_to_their_time(watched):
    watched.wait_rounds()
    parts = "sum(fedpatch_round_phase_seconds_sum{side='coordinator'})"

    def add_up() -> bool:
        # A scrape may come between the two updates: this matters less with more rounds.
        share = watched.prometheus.value(f"{parts} / sum(fedpatch_round_seconds_sum)")
        return share is not None and abs(share - 1.0) <= 0.05

    watched.prometheus.wait_until(add_up, "adds up")


def test_rounds_without_a_pause_add_up_to_the_time_passed(watched):
    watched.wait_rounds()
    first, give_up_at, share = watched.samples(), time.monotonic() + PATIENCE_S, 0.0
    while abs(share - 1.0) > 0.05:
        assert time.monotonic() < give_up_at, f"the rounds make up {share:.3f} of the time"
        time.sleep(1.0)
        now = watched.samples()
        rounds_s, passed_s = (
            now[name] - first[name] for name in ("fedpatch_round_seconds_sum", "fedpatch_last_round_timestamp_seconds")
        )
        share = rounds_s / passed_s if passed_s > 1.0 else 0.0
