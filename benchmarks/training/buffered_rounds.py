"""Time to a user accuracy with late work refused and carried, in a simulated fleet that trains for real.

    FEDPATCH_DATA=... python -m benchmarks.training.buffered_rounds --out results/benchmarks/buffered-rounds.json

50 devices have training times between 20 s and 200 s; at any time a third of them is absent, for half an hour on average. Runs
that are in the file already are not repeated.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import typer

from benchmarks.support.documents import Document, Out, Show, Toy, deliver, kept, read_document, table
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.simulator.fleet.learning import FleetLearning
from fedpatch.simulator.fleet.report import FleetReport
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.simulation import simulate_fleet

BENCHMARK = "buffered_rounds"
EXAMPLE = (
    "FEDPATCH_DATA=... python -m benchmarks.training.buffered_rounds --out results/benchmarks/buffered-rounds.json"
)

log = logging.getLogger("fedpatch.benchmark")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Contest:
    """A task with its target and the most rounds of a run."""

    task: str
    target_ua: float
    rounds: int
    terms: dict[str, Any] = field(default_factory=dict)


CONTESTS = (
    Contest("mnist", 0.97, 300, {"strategy": "fedavg-adam", "steps": 20}),
    Contest("digits", 0.95, 300, {"strategy": "fedavg"}),
)
TOY = (Contest("digits", 0.5, 2, {"strategy": "fedavg", "devices": 5}),)
_CARRY = {"late": "carry", "grace_s": 0.0}
POLICIES: dict[str, dict[str, Any]] = {
    "refuse, quorum 1.0": {"quorum": 1.0},
    "refuse, quorum 0.8": {"quorum": 0.8},
    "carry, quorum 0.8": {**_CARRY, "quorum": 0.8},
    "carry, 10 updates": {**_CARRY, "quorum_updates": 10, "max_staleness": 16},
    "carry, 10 updates, p = -1": {**_CARRY, "quorum_updates": 10, "max_staleness": 16, "staleness_power": -1.0},
    "carry, 16 updates, p = -1": {**_CARRY, "quorum_updates": 16, "max_staleness": 16, "staleness_power": -1.0},
}
TOY_POLICIES = {"carry, 2 updates": {**_CARRY, "quorum_updates": 2}}
SEEDS = range(5)
FLEET: dict[str, Any] = {
    "devices": 50,
    "participation": 1.0,
    "over_select": 1.0,
    "min_cohort": 2,
    "train_s": 20.0,
    "speed_range": 10.0,
    "train_spread": 1.0,
    "slow_share": 0.0,
    "dropout_training": 0.0,
    "dropout_upload": 0.0,
    "unwilling": 0.0,
    "away_share": 1 / 3,
    "away_s": 1800.0,
}


def play(
    contest: Contest,
    policy: str,
    seed: int,
    changes: dict[str, Any],
    learn: Callable[[FleetTerms], FleetLearning] = FleetLearning,
) -> Document:
    """Simulate one run to its target.

    Args:
        contest: The task.
        policy: Name of the policy, for the result.
        seed: Seed of all draws.
        changes: Settings of the policy.
        learn: Returns the training of the devices and the aggregation.

    Returns:
        Time, shares and bytes of the run.
    """
    began = time.process_time()
    given = {**FLEET, **contest.terms, **changes}
    terms = FleetTerms(train=contest.task, target_ua=contest.target_ua, rounds=contest.rounds, seed=seed, **given)
    report = simulate_fleet(terms, learning=learn(terms))
    return {
        "task": contest.task,
        "target_ua": contest.target_ua,
        "policy": policy,
        "seed": seed,
        **_figures(report),
        "cpu_s": round(time.process_time() - began, 1),
    }


def _figures(report: FleetReport) -> Document:
    learned = [one.learned for one in report.rounds if one.learned is not None]
    last = learned[-1]
    shares = [one.weights[-1] for one in learned if one.weights]
    ages: dict[str, int] = {}
    for one in learned:
        for age, count in one.staleness.items():
            ages[age] = ages.get(age, 0) + count
    return {
        "reached": report.stopped_because == "target_ua",
        "time_s": round(last.at_s),
        "versions": last.version,
        "user_accuracy": round(last.user_accuracy, 4),
        "p10": round(last.p10, 4),
        "slow_mean": round(last.slow_mean, 4),
        "slow_weight_share": round(statistics.fmean(shares), 4) if shares else None,
        "slow_example_share": last.examples[-1] if last.examples else None,
        "staleness": dict(sorted(ages.items(), key=lambda one: int(one[0]))),
        "used": sum(one.used for one in report.rounds),
        "bytes": sum(one.bytes_down + one.bytes_up for one in report.rounds),
        "wasted_share": report.wasted_share,
        "curve": [[round(one.at_s), round(one.user_accuracy, 4)] for one in learned],
    }


FIRST, SECOND = "refuse, quorum 1.0", "refuse, quorum 0.8"
LIMITS = ("<= 0.5", "<= 0.8", ">= 0.8", ">= 0", "<= 1.2")
"""Goals of carried work: time over FIRST's and SECOND's, share of slowest fifth, UA p10 minus FIRST's, bytes over FIRST's."""


def tables(document: Document) -> Iterable[str]:
    """Yield two tables for each task: medians over the seeds, and carried work beside refused work."""
    runs = document["runs"]
    for task in dict.fromkeys(run["task"] for run in runs):
        own = [run for run in runs if run["task"] == task]
        policies = list(dict.fromkeys(run["policy"] for run in own))
        found = {policy: [run for run in own if run["policy"] == policy] for policy in policies}
        yield f"{task}, user accuracy {own[0]['target_ua']}, medians over the seeds, with the range of the time:"
        yield ""
        headings = ("policy", "reached", "time", "models", "updates a model", "UA p10", "slowest fifth", "bytes")
        yield from table(headings, [_row(policy, found[policy]) for policy in policies])
        yield ""
        if FIRST in found and SECOND in found:
            titles = (
                "policy",
                f"time / {FIRST}",
                f"time / {SECOND}",
                "slowest fifth",
                f"p10 - {FIRST}",
                f"bytes / {FIRST}",
            )
            rows = [_beside(policy, found) for policy in policies if policy not in (FIRST, SECOND)]
            yield from table(titles, [["aim", *LIMITS], *rows])
            yield ""


def _median(runs: list[Document], name: str) -> float:
    return float(statistics.median(run[name] for run in runs))


def _share(runs: list[Document]) -> float | None:
    known = [run for run in runs if run["slow_weight_share"] is not None]
    return statistics.median(run["slow_weight_share"] / run["slow_example_share"] for run in known) if known else None


def _row(policy: str, runs: list[Document]) -> list[str]:
    share, times = _share(runs), [run["time_s"] for run in runs]
    return [
        policy,
        f"{sum(run['reached'] for run in runs)} of {len(runs)}",
        f"{_median(runs, 'time_s'):,.0f} s ({min(times):,} to {max(times):,})",
        f"{_median(runs, 'versions'):g}",
        f"{statistics.median(run['used'] / run['versions'] for run in runs):.1f}",
        f"{_median(runs, 'p10'):.3f}",
        "-" if share is None else f"{share:.2f}",
        f"{_median(runs, 'bytes') / 1e6:,.0f} MB",
    ]


def _beside(policy: str, found: dict[str, list[Document]]) -> list[str]:
    runs, first = found[policy], found[FIRST]
    share = _share(runs)
    return [
        policy,
        *(f"{_median(runs, 'time_s') / _median(found[other], 'time_s'):.2f}" for other in (FIRST, SECOND)),
        "-" if share is None else f"{share:.2f}",
        f"{_median(runs, 'p10') - _median(first, 'p10'):+.4f}",
        f"{_median(runs, 'bytes') / _median(first, 'bytes'):.2f}",
    ]


@command(app, BENCHMARK, example=EXAMPLE)
def buffered_rounds(out: Out = None, toy: Toy = False, show: Show = None, as_json: AsJson = False) -> None:
    """Time to a user accuracy with late work refused and carried."""
    if show is not None:
        deliver(read_document(show, BENCHMARK), tables, None, as_json)
        return
    document: Document = begun(BENCHMARK, 1)
    known = read_document(out, BENCHMARK)["runs"] if out is not None and out.exists() else []
    runs = {(run["task"], run["policy"], run["seed"]): run for run in known}
    contests, policies = (TOY, TOY_POLICIES) if toy else (CONTESTS, POLICIES)
    for seed in range(1) if toy else SEEDS:
        for contest in contests:
            for policy, changes in policies.items():
                key = (contest.task, policy, seed)
                if key not in runs:
                    runs[key] = play(contest, policy, seed, changes)
                    log.info("%s", {name: value for name, value in runs[key].items() if name != "curve"})
                    kept(document | {"runs": list(runs.values())}, out)
    deliver(document | {"runs": list(runs.values())}, tables, out, as_json)


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.training.buffered_rounds")
