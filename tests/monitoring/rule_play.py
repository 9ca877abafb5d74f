"""Plays the alert rules on series of exporters, as if each phase of a play had been scraped once a minute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from tests.monitoring.prometheus import promtool
from tests.support.paths import ROOT

ALERTS = ROOT / "ansible" / "roles" / "monitoring" / "files" / "alerts" / "fedpatch.yml"

Scrape = Mapping[str, float]


def series_name(name: str, labels: Mapping[str, str]) -> str:
    """Return a series in the notation of PromQL."""
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


def complaints(folder: Path, phases: Sequence[tuple[int, Scrape]], expected: Iterable[str]) -> str:
    """Return promtool's complaints, if other alerts than the expected ones fire at the end of the phases; else "".

    Args:
        folder: Folder for the play.
        phases: Minutes and series of each phase. A series that a phase lacks ends there.
        expected: Names of the alerts.
    """
    values = {
        name: " ".join(
            f"{series[name]}x{minutes - 1}" if name in series else f"stale _x{minutes - 1}"
            for minutes, series in phases
        )
        for name in {name for _, series in phases for name in series}
    }
    # A coordinator that answers, without which FedpatchNothingMeasured would fire.
    values['up{job="fedpatch",instance="hub:9464"}'] = f"1x{sum(minutes for minutes, _ in phases)}"
    firing = {
        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{sum(minutes for minutes, _ in phases) - 1}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)],
    }
    series = [{"series": name, "values": of} for name, of in sorted(values.items())]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [firing]}
    play = folder / "play.yml"
    play.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}), "utf-8"
    )
    done = promtool("test", "rules", play)
    return "" if done.returncode == 0 else done.stdout + done.stderr
