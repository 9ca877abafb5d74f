"""Measures user accuracy with and without differential privacy, and writes results/privacy.

    FEDPATCH_DATA=/srv/data python -m benchmarks.privacy.measure

Fleets at epsilon 8 and delta 1e-5: 200 devices share a head of 1,000 values behind a frozen trunk, with noise of the
coordinator and with noise of the devices in masked groups; 10 devices share the 2NN without its batch norm (`--private all`).
Noise follows from the seeds: a repeated call gives the same figures. Fleets that are in the results already are left out,
because a masked run of 200 devices takes minutes.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from fedpatch.coordinator.aggregation.privacy_policy import CENTRAL, DISTRIBUTED
from fedpatch.coordinator.masking.masked_groups import LEAST_GROUP, group_sizes
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.privacy.plan import Plan, make_plan
from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.wire.masking_messages import MAX_GROUP, ThresholdRule
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import Study

RESULTS = Path(__file__).resolve().parents[2] / "results" / "privacy"
EPSILON, DELTA = 8.0, 1e-5


@dataclass(frozen=True)
class Fleet:
    """A task with its public values, its devices, the strategy's terms and the clip; `dp` as in a run."""

    name: str
    task: str
    values: int
    clients: int
    private: str
    learning_rate: float
    epochs: int
    clip: float
    dp: str = CENTRAL
    rounds: int = 7
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def groups(self) -> list[tuple[int, int]]:
        """Size and threshold of each masked group; none where the coordinator adds the noise."""
        if self.dp == CENTRAL:
            return []
        sizes = group_sizes(self.clients, size=MAX_GROUP, least=LEAST_GROUP)
        return [(size, threshold_of(ThresholdRule.HALF, size)) for size in sizes]

    def study(self, seed: int, plan: Plan | None) -> Study:
        """Return its study with the noise of `plan`, or without differential privacy."""
        terms: dict[str, object] = {}
        if plan is not None:
            terms = {"dp": self.dp, "noise_multiplier": plan.noise_multiplier, "dp_clip": self.clip}
            terms |= {} if self.dp == CENTRAL else {"secure": "groups", "group_size": MAX_GROUP}
        study = make_study(
            task=find_task(self.task),
            task_ref=self.task,
            clients=self.clients,
            strategy="fedavg",
            private=self.private,
            rounds=self.rounds,
            seed=seed,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
        )
        return replace(study, delta=DELTA, **terms)  # type: ignore[arg-type]  # values of several types


HEAD = Fleet("head of 1,000 values", "benchmarks.privacy.frozen_trunk:TASK", 1_000, 200, "none", 2.0, 1, 6.0)
FLEETS = (
    HEAD,
    Fleet("2NN", "mnist", 199_210, 10, "all", 0.03, 1, 0.5),
    replace(HEAD, name="head, noise of devices", dp=DISTRIBUTED, seeds=(0,)),
    replace(HEAD, name="head, noise of devices, 3 rounds", dp=DISTRIBUTED, seeds=(0,), clip=3.0, rounds=3),
)


def measure(fleet: Fleet) -> dict[str, object]:
    """Return the user accuracies of one fleet, with and without noise, by seed."""
    plan = make_plan(
        devices=fleet.clients,
        parameters=fleet.values,
        rounds=fleet.rounds,
        epsilon=EPSILON,
        delta=DELTA,
        groups=fleet.groups,
    )
    found: dict[str, list[float]] = {"without": [], "with": []}
    for seed in fleet.seeds:
        for name, terms in (("without", None), ("with", plan)):
            outcome = simulate(fleet.study(seed, terms))
            assert outcome.user_accuracy is not None
            found[name].append(round(outcome.user_accuracy, 4))
            sys.stderr.write(f"{fleet.name}, seed {seed}, {name} noise: {found[name][-1]}\n")
    return {
        "fleet": fleet.name,
        "learning_rate": fleet.learning_rate,
        "epochs": fleet.epochs,
        "clip": fleet.clip,
        "plan": plan.to_dict(),
        "seeds": list(fleet.seeds),
        "user_accuracy_without": found["without"],
        "user_accuracy_with": found["with"],
        "cost": round(statistics.fmean(found["without"]) - statistics.fmean(found["with"]), 4),
    }


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| shared | devices | noise / clip | verdict of `privacy plan` | UA without | UA with epsilon 8 |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        plan, without, noised = row["plan"], row["user_accuracy_without"], row["user_accuracy_with"]
        assert isinstance(plan, dict) and isinstance(without, list) and isinstance(noised, list)
        lines.append(
            f"| {row['fleet']} | {plan['devices']} | {plan['ratio']:.2g} | `{plan['verdict']}` | "
            f"{statistics.fmean(without):.3f} | {statistics.fmean(noised):.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the missing fleets, and write the figures and the table after each."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "outcomes.json"
    rows = json.loads(path.read_text("utf-8")) if path.exists() else []
    known = {row["fleet"] for row in rows}
    for fleet in FLEETS:
        if fleet.name not in known:
            rows.append(measure(fleet))
            path.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    (RESULTS / "table.md").write_text(table(rows), "utf-8")


if __name__ == "__main__":
    main()
