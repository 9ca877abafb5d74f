"""Every panel of the dashboards finds data in a real Prometheus that reads the metrics of a real run."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.support.paths import ROOT

pytest.importorskip("fedpatch.coordinator.observability.metric_definitions", reason="the coordinator has no metrics")

from tests.device_agent.sensors.scenes import Scene
from tests.monitoring.prometheus import Prometheus
from tests.support.brokers import HOST, Mosquitto, free_port
from tests.system.commands import Command
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600)]

FOLDER = ROOT / "ansible" / "roles" / "monitoring" / "files" / "dashboards"
DEVICES = ("ann", "bob")
# Panels without data in this run, with the reason. The tests with a stand-in have data for all panels.
QUIET = {
    "Certificate": "the broker has no TLS",
    "Failures by reason": "no device fails",
    "Smallest sites": "the fleet has no relay",
    "Updates not taken, by reason": "each update is taken",
}


def _queries() -> list[tuple[str, str]]:
    """Return each query with the title of its panel."""
    boards = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return [
        (panel["title"], target["expr"])
        for board in boards
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]


def test_every_panel_finds_data_of_a_real_run(tmp_path):
    target = f"{HOST}:{free_port()}"
    scene = Scene(tmp_path / "machine")
    scene.whole()
    scrape = {"job_name": "fedpatch", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    options = [
        "--task",
        "digits",
        "--devices",
        len(DEVICES),
        "--rounds",
        1_000_000,
        "--quorum",
        0.5,
        "--evaluate-every",
        3,
        "--independent-every",
        2,
    ]
    with (
        Prometheus(yaml.safe_dump({"scrape_configs": [scrape]})) as prometheus,
        Mosquitto() as broker,
        Fleet(broker.url, tmp_path) as fleet,
    ):
        # Besides working devices, one that declines, and one whose preferences would make it decline.
        for index, device in enumerate(DEVICES):
            on_a_pi = ["--conditions-root", str(scene.root)]
            fleet.start(device, "digits", f"shard:{index}/{len(DEVICES)}", options=on_a_pi)
        order = tmp_path / "order"
        order.write_text("decline not today\n")
        fleet.start("cat", "digits", "shard:0/2", admission=f"file:{order}")
        fleet.start("dan", "digits", "shard:0/2", admission="preferences", options=["--quiet-hours", "00:00-24:00"])
        fleet.wait_ready()
        options += ["--broker", broker.url, "--fleet", fleet.name, "--state-dir", tmp_path / "state"]
        with Command("fedpatch", "run", *options, "--metrics", target) as run:
            rounds = 'fedpatch_rounds_total{outcome="aggregated"} >= 5'
            prometheus.wait_until(lambda: prometheus.ask(rounds), "has seen five rounds")
            variables = {"coordinator": target, "device": "ann", "__range": "15m"}

            def without_data() -> set[str]:
                return {
                    title
                    for title, expr in _queries()
                    if not prometheus.ask(re.sub(r"\$(\w+)", lambda match: variables[match[1]], expr))
                }

            prometheus.wait_until(
                lambda: without_data() <= QUIET.keys(), f"has data for all panels but {sorted(QUIET)}"
            )
            run.interrupt()
