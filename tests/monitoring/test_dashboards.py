"""The dashboards: layout, and queries that return data in a real Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml
from prometheus_client import start_http_server

from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.wire.reason_codes import LinkKind
from fedpatch.shared.wire.vitals import LastRound, Vitals
from tests.coordinator.metered_run import Metered
from tests.monitoring.grafana_schema import complaints, fetch_compiler
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.stand_in import DEVICE_STATES, StandIn, metric_names, standby
from tests.support.brokers import HOST
from tests.support.paths import ROOT
from tests.support.specs import RUN

FOLDER = ROOT / "ansible" / "roles" / "monitoring" / "files" / "dashboards"
ALERTS = FOLDER.parent / "alerts" / "fedpatch.yml"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"
# The server and npm may take long on a busy machine.
pytestmark = pytest.mark.timeout(400)
# The values that Grafana inserts for variables.
GRAFANA_VARIABLES = {"__range": "15m", "__rate_interval": "1m", "__interval": "15s", "device": "ann"}
NAMES = sorted(path.name for path in FOLDER.iterdir())
STATE_PANELS = {"device.json": "State over time", "fleet.json": "State of each device"}
"""Panels with a number for each state of a device, because Grafana colours numbers and not labels."""
WELL = Vitals(True, 0.75, False, False, 61.5, LinkKind.WIFI, 0.5, 2**29, 2**33)


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text("utf-8"))
    return content


def _panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in _read(name)["panels"] if panel["type"] != "row"]


def _panel(name: str, title: str) -> dict[str, Any]:
    [found] = [panel for panel in _panels(name) if panel["title"] == title]
    return found


def _queries() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Dashboard, panel and target of every query."""
    for name in NAMES:
        for panel in _panels(name):
            for target in panel["targets"]:
                yield name, panel, target


def _filled_in(expr: str, variables: Mapping[str, str]) -> str:
    """Insert the values of Grafana's variables; KeyError for a variable that Grafana does not have."""
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables[match[1]], expr)


@pytest.fixture(scope="module")
def scraped() -> Iterator[tuple[Prometheus, dict[str, str]]]:
    """A Prometheus configured by docs/how-to/monitoring.md that has scraped some rounds; the variables' values."""
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text("utf-8")
    config = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    with StandIn() as coordinator, standby("demo") as waits, standby("other") as of_another_fleet:
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [coordinator.address, waits, of_another_fleet]
        with Prometheus(yaml.safe_dump(config)) as prometheus:
            seen = "min(count_over_time(fedpatch_round_number[10m])) >= 5"
            prometheus.wait_until(lambda: prometheus.ask(seen), "has seen five rounds")
            yield prometheus, {**GRAFANA_VARIABLES, "coordinator": coordinator.address, "standby": waits}


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap(name):
    taken: set[tuple[int, int]] = set()
    for panel in _read(name)["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", NAMES)
def test_each_panel_and_row_has_its_own_id(name):
    numbers = [panel["id"] for panel in _read(name)["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("name", NAMES)
def test_each_panel_has_title_description_and_data_source(name):
    panels = _panels(name)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles) > 5
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_each_query_selects_one_coordinator():
    """Metrics of two coordinators in one Prometheus are not added, except those of a fleet's leader and standbys."""
    chosen = r"last_over_time\(fedpatch_leader\{[^}]*\}\[\$__range\]\)"
    of_fleet = re.compile(rf"fedpatch_leader\w*(\[\$__range\]\))? and on \(fleet\) {chosen}")
    for name, panel, target in _queries():
        expr = of_fleet.sub("", target["expr"])
        selectors = re.findall(r"\b(?:fedpatch|process)_\w+(\{[^}]*\})?", expr)
        assert all('instance="$coordinator"' in one for one in selectors), (name, panel["title"])


def test_queries_and_alerts_use_existing_metrics():
    asked = {word for _, _, target in _queries() for word in re.findall(r"\bfedpatch_\w+", target["expr"])}
    rules = [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]
    asked |= {word for rule in rules for word in re.findall(r"\bfedpatch_\w+", rule["expr"])}
    assert len(asked) > 40
    assert asked - metric_names() == set()
    if METRICS_PAGE.exists():
        documented = METRICS_PAGE.read_text("utf-8")
        assert {one for one in asked if re.sub("_(bucket|sum|count)$", "", one) not in documented} == set()


@pytest.mark.parametrize(("name", "title"), STATE_PANELS.items())
def test_each_device_state_has_a_colour_and_a_number(name, title):
    panel = _panel(name, title)
    numbered = re.findall(r'\((\d+) \* fedpatch_device_state\{[^}]*state=~"([^"]+)"', panel["targets"][0]["expr"])
    states = [state for _, of_number in numbered for state in of_number.split("|")]
    assert sorted(states) == sorted([*State, *DEVICE_STATES])
    [mapping] = panel["fieldConfig"]["defaults"]["mappings"]
    assert sorted(mapping["options"]) == sorted(number for number, _ in numbered)
    assert all(one["color"] and one["text"] for one in mapping["options"].values())


@pytest.mark.parametrize(
    ("name", "panel", "target"), list(_queries()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_each_query_returns_data_in_prometheus(scraped, name, panel, target):
    prometheus, variables = scraped
    series = prometheus.ask_until_there(_filled_in(target["expr"], variables))
    legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    columns = [one for one in panel.get("transformations", []) if one["id"] == "filterFieldsByName"]
    labels = legend | {label for one in columns for label in one["options"]["include"]["names"]} - {"Value"}
    assert all(labels <= set(one["metric"]) for one in series), (name, panel["title"])
    identities = [tuple(one["metric"].get(label) for label in sorted(labels)) for one in series]
    assert len(set(identities)) == len(series), "two series under one name"


@pytest.mark.medium
def test_each_query_of_a_healthy_run_has_a_number_or_its_panel_says_why_not(tmp_path):
    """After the first rounds of a real engine: no decline, no failure, nothing carried, no comparison with learning alone."""
    fleet = Metered(tmp_path, rounds=9)
    fleet.metrics.traffic.leader.labels("demo").set(1)
    fleet.metrics.traffic.leader_epoch.labels("demo").set(0)
    fleet.metrics.traffic.expiry.labels("ca").set(4e9)
    fleet.metrics.traffic.free.set(4e9)
    fleet.metrics.traffic.size.set(8e9)
    for device in "ab":
        fleet.vitals(device, WELL)
    fleet.upload_all("ab")
    fleet.look()
    server, _ = start_http_server(0, HOST, fleet.metrics.registry)
    address = f"{HOST}:{server.server_port}"
    jobs = [{"job_name": "fedpatch", "static_configs": [{"targets": [address]}]}]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    variables = {**GRAFANA_VARIABLES, "coordinator": address, "standby": address, "device": "a"}
    silent: dict[str, list[str]] = {}
    with Prometheus(yaml.safe_dump(config)) as prometheus:
        prometheus.wait_until(lambda: prometheus.ask("count_over_time(fedpatch_round_number[1m]) >= 3"), "has scraped")
        fleet.tick(10.0)
        fleet.upload_all("ab")
        for device in "ab":
            fleet.vitals(device, replace(WELL, last_round=LastRound(RUN, 2, 1.5, 0.5, 1000, 0)))
        fleet.look()
        more = "increase(fedpatch_round_seconds_count[1m]) > 0"
        prometheus.wait_until(lambda: prometheus.ask(more), "has scraped the second round")
        for name, panel, target in _queries():
            found = prometheus.ask(_filled_in(target["expr"], variables))
            numbers = [one for one in found if one["value"][1] != "NaN"]
            if not numbers and panel["fieldConfig"]["defaults"]["noValue"] == "none":
                silent.setdefault(f"{name}: {panel['title']}", []).append(target["expr"])
    server.shutdown()
    server.server_close()
    assert silent == {}


def test_leaders_are_those_of_the_fleet_of_the_coordinator(scraped):
    prometheus, variables = scraped
    panels = {panel["title"]: panel["targets"][0]["expr"] for panel in _panels("fleet.json")}
    leads = prometheus.ask_until_there(_filled_in(panels["Who leads"], variables))
    found = {series["metric"]["instance"]: series["value"][1] for series in leads}
    assert found == {variables["coordinator"]: "1", variables["standby"]: "0"}
    numbers = {"Standbys": "1", "Epoch": "3", "Changes of leader": "0"}
    for title, expected in numbers.items():
        [series] = prometheus.ask_until_there(_filled_in(panels[title], variables))
        assert (title, series["value"][1]) == (title, expected)


def test_dashboard_variables_have_values(scraped):
    prometheus, variables = scraped
    found = {}
    for variable in _read("device.json")["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert asked is not None
            selector, label = asked.groups()
            found[variable["name"]] = prometheus.get(
                f"label/{label}/values", **{"match[]": _filled_in(selector, variables)}
            )
    assert found == {"coordinator": [variables["coordinator"]], "device": ["ann", "bob", "cat", "dan", "eve"]}


def test_each_device_has_one_state(scraped):
    prometheus, variables = scraped
    panel = _panel("fleet.json", STATE_PANELS["fleet.json"])
    series = prometheus.ask_until_there(_filled_in(panel["targets"][0]["expr"], variables))
    assert sorted(one["metric"]["device"] for one in series) == ["ann", "bob", "cat", "dan", "eve"]
    [mapping] = panel["fieldConfig"]["defaults"]["mappings"]
    assert {one["value"][1] for one in series} <= set(mapping["options"])


def test_rules_are_evaluated_by_prometheus(scraped):
    prometheus, _ = scraped

    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    prometheus.wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), "has evaluated every rule")
    assert {(rule["name"], rule.get("lastError", "")) for rule in rules() if rule["health"] != "ok"} == set()
    assert prometheus.ask_until_there('fedpatch:user_accuracy:mean{run="r1", goal="max"}')


@pytest.mark.slow
def test_dashboards_match_the_types_of_grafana(tmp_path):
    """The types are those of @grafana/schema, fetched with npm; the compiler finds a misspelt field."""
    compiler = fetch_compiler(tmp_path)
    good = {name: _read(name) for name in NAMES}
    assert complaints(compiler, tmp_path, good) == ""
    for spoil in (
        lambda board: board["panels"][1]["options"].update(graphMode="curvy"),
        lambda board: board["panels"][1].update(colour="red"),
        lambda board: board["panels"][1]["fieldConfig"]["defaults"].update(unit=7),
    ):
        bad = _read("rounds.json")
        spoil(bad)
        assert complaints(compiler, tmp_path, {"rounds.json": bad}) != ""
