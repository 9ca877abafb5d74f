"""The alert rules, which promtool evaluates on prepared series."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from tests.monitoring.prometheus import Prometheus, promtool, scraping
from tests.support.brokers import HOST, free_port
from tests.support.paths import ROOT

ALERTS = ROOT / "ansible" / "roles" / "monitoring" / "files" / "alerts" / "fedpatch.yml"
PLAYS = sorted((Path(__file__).parent / "alerts").glob("*.yml"))
NAMES = re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8"))


def _plays(path: Path) -> list[dict[str, Any]]:
    tests: list[dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))["tests"]
    return tests


def test_rules_are_valid_promql():
    checked = promtool("check", "rules", ALERTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.medium
@pytest.mark.parametrize("play", PLAYS, ids=lambda path: path.stem)
def test_play_has_exactly_the_expected_alerts(play):
    played = promtool("test", "rules", play)
    assert played.returncode == 0, played.stdout + played.stderr


def _at_once(folder: Path, config: str) -> str:
    """Return a configuration whose rules are evaluated each second, and whose alerts fire without delay."""
    rules = folder / "fedpatch.yml"
    rules.write_text(re.sub(r"(?m)^( +)for: .*$", r"\1for: 0s", ALERTS.read_text("utf-8")))
    return f"{config}rule_files: ['{rules}']\n".replace("global: {", "global: {evaluation_interval: 1s, ")


@pytest.mark.medium
def test_coordinator_and_host_that_do_not_answer_are_alerted_on_by_name(tmp_path: Path):
    """Another coordinator and another host answer."""
    server, _ = start_http_server(0, HOST, CollectorRegistry())
    served, dead = f"{HOST}:{server.server_port}", f"{HOST}:{free_port()}"
    hosts = [{"targets": [target], "labels": {"host": host}} for target, host in ((served, "hub"), (dead, "pi-1"))]
    job = yaml.safe_dump([{"job_name": "node", "static_configs": hosts}], default_flow_style=True)
    config = scraping(served, dead).replace("scrape_configs: [", f"scrape_configs: [{job.strip()[1:-1]}, ")
    expected = {
        ("FedpatchCoordinatorDown", f"No coordinator answers at {dead}"),
        ("FedpatchHostDown", "The host pi-1 does not answer"),
    }
    with Prometheus(_at_once(tmp_path, config)) as prometheus:

        def alerts() -> set[tuple[str, str]]:
            found = prometheus.get("alerts")["alerts"]
            return {(one["labels"]["alertname"], one["annotations"]["summary"]) for one in found}

        prometheus.wait_until(lambda: alerts() == expected, "has these alerts and no other")
    server.shutdown()
    server.server_close()


@pytest.mark.medium
def test_prometheus_whose_clock_was_ahead_is_alerted_on_without_a_sample(tmp_path: Path):
    """Blocks from the future refuse all samples, also those of the alerts themselves."""
    ahead = time.time() + 2 * 86_400
    samples = "".join(f'up{{job="fedpatch"}} 1 {ahead + second:.0f}\n' for second in range(0, 7200, 60))
    config = _at_once(tmp_path, scraping(f"{HOST}:{free_port()}"))
    with Prometheus(config, f"# TYPE up gauge\n{samples}# EOF\n") as server:
        server.wait_until(lambda: server.get("alerts")["alerts"], "has an alert")
        (alert,) = server.get("alerts")["alerts"]
        assert (alert["labels"]["alertname"], alert["state"]) == ("FedpatchNothingMeasured", "firing")
        assert server.ask("up") == []


def test_each_alert_fires_and_stays_quiet_in_some_play():
    moments = [one for path in PLAYS for test in _plays(path) for one in test.get("alert_rule_test", [])]
    assert {one["alertname"] for one in moments if one["exp_alerts"]} == set(NAMES)
    assert {one["alertname"] for one in moments if not one["exp_alerts"]} == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_play_fails_for_an_alert_that_never_or_always_fires(tmp_path, name):
    """The plays can detect a wrong rule."""
    (play,) = [path for path in PLAYS if name in path.read_text("utf-8")]
    rules = yaml.safe_load(ALERTS.read_text("utf-8"))
    rule = next(one for group in rules["groups"] for one in group["rules"] if one.get("alert") == name)
    series = re.findall(r"fedpatch[\w:]+|\bup\b|node_\w+", rule["expr"])[0]
    text = re.sub(r"(?m)^rule_files: .*$", "rule_files: [rules.yml]", play.read_text("utf-8"))
    outcomes = []
    for expr in (rule["expr"], "vector(0) > 1", f"{series} > -Inf"):
        rule["expr"] = expr
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules), "utf-8")
        (tmp_path / "play.yml").write_text(text, "utf-8")
        outcomes.append(promtool("test", "rules", tmp_path / "play.yml").returncode == 0)
    assert outcomes == [True, False, False]
