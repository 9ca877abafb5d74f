"""docs/how-to/runbooks.md has a section for each alert, and docs/how-to/monitoring.md a configuration that Prometheus takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from importlib import import_module
from typing import Any

import pytest
import typer.main
import yaml

from tests.monitoring.prometheus import promtool
from tests.support.paths import ROOT
from tests.support.runbooks import COMMANDS, RUNBOOKS

FILES = ROOT / "ansible" / "roles" / "monitoring" / "files"
ALERTS = FILES / "alerts" / "fedpatch.yml"
MONITORING = (ROOT / "docs" / "how-to" / "monitoring.md").read_text("utf-8")
RULES = [
    rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"] if "alert" in rule
]


def test_every_alert_has_a_section_and_every_section_an_alert():
    assert re.findall(r"^## (\w+)$", RUNBOOKS, re.MULTILINE) == [rule["alert"] for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_severity_and_a_runbook_section(rule):
    assert rule["labels"].keys() == {"severity"} and rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"].endswith(f"/runbooks.md#{rule['alert'].lower()}")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_runbook_section_has_see_and_do(rule):
    section = re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE)[1 + RULES.index(rule)]
    assert re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE) == ["See", "Do"]


def test_the_links_of_both_pages_lead_somewhere():
    """A link leads to a file of the project; a section in a link is a section of the runbooks."""
    links = re.findall(r"\]\(([^)]+)\)", RUNBOOKS + MONITORING)
    assert len(links) > 5
    for link in links:
        path, _, section = link.partition("#")
        assert not path or (ROOT / "docs" / "how-to" / path).exists(), link
        assert path or section in {rule["alert"].lower() for rule in RULES}, link


def _program(name: str) -> Any:
    module = {"fedpatch": "fedpatch.coordinator.cli.main", "fedpatch-agent": "fedpatch.device_agent.cli.main"}[name]
    return typer.main.get_command(import_module(module).app)


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_the_page_exists_with_its_options(line):
    """On hosts of the playbooks it is typed as it stands: test_operator_commands.py has what is added there."""
    name, *argv = shlex.split(line)
    group, path = _program(name), [name]
    while (
        argv
        and hasattr(group, "get_command")
        and (inner := group.get_command(group.make_context(name, ["--help"], resilient_parsing=True), argv[0]))
    ):
        path.append(argv.pop(0))
        group = inner
    assert len(path) > 1, line
    group.make_context(" ".join(path), argv)


@pytest.mark.parametrize("service", ["coordinator", "device_agent"])
def test_no_command_of_the_page_is_refused_on_hosts_of_the_playbooks(service):
    """Work of a service is named for hosts without a service only, with those words."""
    variables = yaml.safe_load((ROOT / "ansible" / "roles" / service / "vars" / "main.yml").read_text("utf-8"))
    command = variables[f"{service}_command"]
    refused = [f"{command['name']} {word}" for word in command["of_service"]]
    paragraphs = [text for text in RUNBOOKS.split(". ") if any(f"`{one}" in text for one in refused)]
    assert all("Without a service, " in text for text in paragraphs), paragraphs


# Words of the page that are no commands.
WORDS = {"out of bounds", "too old sample", 'aggregate = "mean"'}
# Commands of Debian, and the command that is typed here: it reads a folder of the test, and ends.
OF_DEBIAN = {
    "df -h": "df -h",
    "du -sh": "du -sh {folder}",
    "free -m": "free -m",
    "sudo du -xhd1 / | sort -h | tail": "du -xhd1 {folder} | sort -h | tail",
    "journalctl -u fedpatch-coordinator -n 50": "journalctl -u fedpatch-coordinator -n 50 --directory={folder}",
    "journalctl -u fedpatch-agent": "journalctl -u fedpatch-agent --directory={folder}",
    "sudo journalctl --vacuum-size=64M": "journalctl --vacuum-size=64M --directory={folder}",
    "systemd-cgtop -m": "systemd-cgtop -m --help",
    "promtool tsdb list /var/lib/prometheus/metrics2": "promtool tsdb list {folder}",
}
# Sensors and kernel messages of a Raspberry Pi, which no test machine has.
OF_A_PI = {
    "cat /sys/class/thermal/thermal_zone*/temp",
    "dmesg | grep -i voltage",
    "vcgencmd get_throttled",
    "vcgencmd measure_temp",
}


def test_each_other_command_of_the_page_is_typed_here_or_needs_a_raspberry_pi():
    spans = {one for one in re.findall(r"`([^`]+)`", RUNBOOKS) if " " in one and not one.startswith("-")}
    of_units = {one for one in spans if "systemctl " in one}
    assert spans - set(COMMANDS) - of_units - WORDS == OF_DEBIAN.keys() | OF_A_PI


@pytest.mark.parametrize("written", OF_DEBIAN)
def test_command_of_debian_on_the_page_is_understood(written, tmp_path):
    line = OF_DEBIAN[written].format(folder=tmp_path)
    if shutil.which(line.split()[0]) is None:
        pytest.skip(f"{line.split()[0]} is not installed")
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_service_of_the_page_is_one_that_the_playbooks_set_up():
    named = set(re.findall(r"`(?:sudo )?(?:systemctl \w+|journalctl -u) ([\w-]+)", RUNBOOKS))
    roles = "".join(path.read_text("utf-8") for path in (ROOT / "ansible" / "roles").glob("*/tasks/*.yml"))
    assert len(named) > 2
    assert named - set(re.findall(r"name: ([\w-]+)\.service$", roles, re.MULTILINE)) == set()


def test_the_page_names_every_file():
    named = set(re.findall(r"^\| `([\w/.]+)`", MONITORING, re.MULTILINE))
    assert named == {str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file()}


def test_prometheus_takes_the_configuration_of_the_page(tmp_path):
    config = MONITORING.split("```yaml\n")[1].split("```")[0]
    assert "/etc/prometheus/fedpatch-alerts.yml" in config
    path = tmp_path / "prometheus.yml"
    path.write_text(config.replace("/etc/prometheus/fedpatch-alerts.yml", str(ALERTS)), "utf-8")
    checked = promtool("check", "config", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
