"""Aggregation rules under attacks on one task: how much user accuracy each rule loses to each attack."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpatch.coordinator.aggregation.limit_syntax import parse_aggregate_rule, parse_norm_bound
from fedpatch.shared.errors import UpdateRefused, UsageError
from fedpatch.shared.tasks.task import Task
from fedpatch.simulator.attacks.poisoned_updates import parse_attack
from fedpatch.simulator.experiment.cell_file import CellFile
from fedpatch.simulator.experiment.options import check_study, require_federated
from fedpatch.simulator.spec.study import UNBOUNDED, Outcome, Point, Study

NO_ATTACK = "none"

Key = tuple[str, str, float, int]
"""The terms of a cell: defence, attack, share of bad clients, seed."""


@dataclass(frozen=True)
class Defence:
    """A rule of aggregation and a norm bound.

    Attributes:
        rule: Value of the setting `aggregate`.
        norm_bound: Value of the setting of this name.
    """

    rule: str
    norm_bound: str = UNBOUNDED

    def __str__(self) -> str:
        """Return the text that `parse_defence` reads."""
        return self.rule if self.norm_bound == UNBOUNDED else f"{self.rule}/{self.norm_bound}"


@dataclass(frozen=True)
class RobustnessCell:
    """One simulation of the table.

    Attributes:
        defence: The rule, with its norm bound.
        attack: The attack; NO_ATTACK: none.
        bad: The share of bad clients.
        seed: The seed.
        user_accuracy: Mean over the honest clients after the last round.
        p10: The 10th percentile over them.
        backdoor_success: See AttackOutcome.
        found: See AttackOutcome.
        broken: The reason why the run ended early, with figures of its last round; "" if it did not.
    """

    defence: str
    attack: str
    bad: float
    seed: int
    user_accuracy: float
    p10: float
    backdoor_success: float | None = None
    found: float | None = None
    broken: str = ""

    @property
    def key(self) -> Key:
        """The terms of the simulation."""
        return self.defence, self.attack, self.bad, self.seed


Simulate = Callable[..., Outcome]


def parse_defence(text: str) -> Defence:
    """Parse RULE or RULE/BOUND; raise UsageError for any other text."""
    rule, slash, bound = text.partition("/")
    parse_aggregate_rule(rule)
    if slash:
        parse_norm_bound(bound)
    return Defence(rule, bound if slash else UNBOUNDED)


def plan_table(defences: Sequence[str], attacks: Sequence[str], shares: Sequence[float], seeds: int) -> list[Key]:
    """Return the keys of all cells, seed by seed: an interrupted table has complete seeds.

    Args:
        defences: RULE or RULE/BOUND.
        attacks: KIND or KIND:STRENGTH. NO_ATTACK is always in the table, and may be the only one.
        shares: Shares of bad clients.
        seeds: Number of seeds, from 0 on.

    Raises:
        UsageError: A text cannot be parsed, or a share is not above 0 and below 1.
    """
    rules = list(dict.fromkeys(str(parse_defence(text)) for text in defences))
    kinds = list(dict.fromkeys(str(parse_attack(text)) for text in attacks if text != NO_ATTACK))
    for share in shares:
        if not 0 < share < 1:
            raise UsageError(f"--bad: {share} is not a share above 0 and below 1")
    cases = [(NO_ATTACK, 0.0), *((kind, share) for share in dict.fromkeys(shares) for kind in kinds)]
    return [(rule, kind, share, seed) for seed in range(seeds) for kind, share in cases for rule in rules]


def study_of_cell(study: Study, key: Key) -> Study:
    """Return the study of one cell; `study` has the terms that all cells share."""
    text, attack, bad, seed = key
    defence = parse_defence(text)
    study = replace(study, aggregate=defence.rule, norm_bound=defence.norm_bound, seed=seed)
    return study if attack == NO_ATTACK else replace(study, attack=attack, bad=bad)


def check_cells(study: Study, task: Task, keys: Iterable[Key]) -> None:
    """Check that all cells can be simulated.

    Args:
        study: The terms that all cells share.

    Raises:
        UsageError: A rule, an attack and the strategy do not fit together, or nothing is federated.
    """
    require_federated(study)
    for rule, attack, bad in dict.fromkeys(key[:3] for key in keys):
        try:
            check_study(study_of_cell(study, (rule, attack, bad, 0)), task)
        except UsageError as error:
            raise UsageError(f"--rules {rule} with --attacks {attack}: {error}") from error


def play_cell(
    study: Study,
    key: Key,
    simulate: Simulate,
    *,
    workers: int,
    root: Path | None,
    stopped: Callable[[], bool],
) -> RobustnessCell | None:
    """Simulate one cell.

    Args:
        study: The terms that all cells share.
        simulate: simulator.experiment.simulation.simulate.
        workers: Processes.
        root: Folder for data files.
        stopped: Returns True to interrupt.

    Returns:
        The cell, None if it was interrupted.
    """
    study = study_of_cell(study, key)
    points: list[Point] = []
    measured: dict[int, float] = {}
    try:
        outcome = simulate(
            study, workers=workers, root=root, stopped=stopped, on_point=points.append, on_end=measured.update
        )
    except UpdateRefused as error:
        last = points[-1]
        return RobustnessCell(*key, last.user_accuracy, last.p10, broken=str(error))
    if not outcome.complete:
        return None
    values = list(measured.values())
    cell = RobustnessCell(*key, statistics.fmean(values), study.metric_terms.p10(values))
    if outcome.attack is None:
        return cell
    return replace(cell, backdoor_success=outcome.attack.backdoor_success, found=outcome.attack.found)


class RobustnessFile(CellFile[RobustnessCell]):
    """The cells of a table on disk; each is written as soon as it is computed.

    Args:
        path: The file; None: nothing is written.
        study: The terms that all cells share.

    Raises:
        UsageError: The file has other terms, or is not such a table.
    """

    def __init__(self, path: Path | None, study: Study) -> None:
        super().__init__(path, _terms_of(study), RobustnessCell, "python -m studies.robustness")


def _terms_of(study: Study) -> dict[str, Any]:
    return {name: value for name, value in study.to_dict().items() if name not in ("seed", "target_ua")}


@dataclass(frozen=True)
class RobustnessRow:
    """A defence under one attack, over all computed seeds.

    Attributes:
        defence, attack, bad: See RobustnessCell.
        seeds: Number of seeds.
        user_accuracy, p10, backdoor_success, found: Means over the seeds.
        spread: Standard deviation of the user accuracy over the seeds; 0 for one seed.
        broken: Number of seeds whose run ended early.
    """

    defence: str
    attack: str
    bad: float
    seeds: int
    user_accuracy: float
    spread: float
    p10: float
    backdoor_success: float | None
    found: float | None
    broken: int


def summarise(cells: Iterable[RobustnessCell]) -> list[RobustnessRow]:
    """Return a row for each defence and attack, in the order of the cells."""
    groups: dict[tuple[str, str, float], list[RobustnessCell]] = {}
    for cell in cells:
        groups.setdefault((cell.defence, cell.attack, cell.bad), []).append(cell)
    return [_row(*key, group) for key, group in groups.items()]


def _row(defence: str, attack: str, bad: float, cells: Sequence[RobustnessCell]) -> RobustnessRow:
    accuracies = [cell.user_accuracy for cell in cells]
    return RobustnessRow(
        defence,
        attack,
        bad,
        len(cells),
        statistics.fmean(accuracies),
        statistics.stdev(accuracies) if len(cells) > 1 else 0.0,
        statistics.fmean(cell.p10 for cell in cells),
        _mean(cell.backdoor_success for cell in cells),
        _mean(cell.found for cell in cells),
        sum(bool(cell.broken) for cell in cells),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def markdown_tables(rows: Sequence[RobustnessRow]) -> list[str]:
    """Return the lines of one table in Markdown for each share of bad clients: user accuracy and its 10th percentile."""
    lines: list[str] = []
    for share in sorted({row.bad for row in rows if row.bad}) or [0.0]:
        chosen = [row for row in rows if row.bad in (0.0, share)]
        attacks = list(dict.fromkeys(row.attack for row in chosen))
        by_key = {(row.defence, row.attack): row for row in chosen}
        lines += [
            f"{share:.0%} bad devices:",
            "",
            f"| rule | {' | '.join(attacks)} |",
            f"|{'---|' * (len(attacks) + 1)}",
        ]
        for defence in dict.fromkeys(row.defence for row in chosen):
            found = [by_key.get((defence, attack)) for attack in attacks]
            lines.append(f"| `{defence}` | {' | '.join(map(_entry, found))} |")
        lines.append("")
    return lines


def _entry(row: RobustnessRow | None) -> str:
    if row is None:
        return "-"
    words = f"{row.user_accuracy:.3f} ({row.p10:.3f})"
    if row.backdoor_success is not None:
        words += f", success {row.backdoor_success:.0%}"
    return words if not row.broken else f"{words}, {row.broken} ended"
