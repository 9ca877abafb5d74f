"""The page when-devices-lie.md: aggregation rules under attacks, from the files below results/robustness."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedpatch.shared.app.formatting import size
from scripts.reference.markdown import render, table
from studies.pages import RESULTS, TEMPLATES
from studies.robustness.table import NO_ATTACK, RobustnessCell, RobustnessRow, summarise

FOLDER = RESULTS / "robustness"
TASKS = {"digits": "rules-digits.json", "MNIST": "rules-mnist.json", "digits, C = 0.2": "rules-digits-some.json"}
FLOWER = "rules-digits-flower.json"
_MEAN = "mean"
_SHOWN = ("sign:4", "alie:1.5", "ipm:2", "noise:20")
"""Attacks with a column of their own: those in which the rules differ."""


def page() -> str:
    """Return the page."""
    cells = {name: read_cells(FOLDER / file) for name, file in TASKS.items()}
    return render(
        TEMPLATES / "when-devices-lie.md",
        cost=cost(cells),
        processor=processor(RESULTS / "benchmarks" / "rules.json"),
        digits=attacks(cells["digits"], 0.2),
        mnist=attacks(cells["MNIST"], 0.2),
        spread=spread({name: cells[name] for name in ("digits", "MNIST")}, 0.2),
        seeds=seeds([*attacked(cells["digits"], 0.2), *attacked(cells["MNIST"], 0.2)]),
        shares=shares(cells["digits"], (0.1, 0.2, 0.4)),
        failing=" and ".join(
            _entry_of(read_cells(FOLDER / FLOWER), rule, "ipm:2") for rule in ("FedMedian", "MultiKrum")
        ),
        centred=_behind_mean(cells["digits"], "centred", "ipm:2"),
        centred_mnist=_behind_mean(cells["MNIST"], "centred", "ipm:2"),
        backdoor=backdoor(cells.values(), 0.2),
        found=found(cells["digits"], 0.2, ("mean/auto:2", "centred/auto:2")),
    )


def tables() -> str:
    """Return the tables of all rules and attacks, with the worst tenth of the devices."""
    parts = ["# Rules of aggregation under attack, all figures", ""]
    parts += [
        "User accuracy of the honest devices, a mean over the seeds; in brackets the 10th percentile over devices.",
        "",
    ]
    cells = {name: read_cells(FOLDER / TASKS[name]) for name in ("digits", "MNIST")}
    for name, share in (("digits", 0.2), ("MNIST", 0.2), ("digits", 0.1), ("digits", 0.4)):
        rows = attacked(cells[name], share)
        kinds = list(dict.fromkeys(row.attack for row in rows))
        lines = [(f"`{rule}`", *(_whole_entry(own.get(kind)) for kind in kinds)) for rule, own in _by_rule(rows)]
        parts += [f"## {name}, {share:.0%} bad devices, {seeds(rows)} seeds", "", table(("rule", *kinds), lines)]
    parts += ["## Bad devices among those pulled most, digits, 20% bad devices", "", found(cells["digits"], 0.2)]
    parts += ["## Flower's functions, digits, 20% bad devices", "", flower(read_cells(FOLDER / FLOWER))]
    return "\n".join(parts)


def _whole_entry(row: RobustnessRow | None) -> str:
    return "-" if row is None else f"{row.user_accuracy:.3f} ({row.p10:.2f})"


def read_cells(path: Path) -> list[RobustnessCell]:
    """Return the cells of a table."""
    return [RobustnessCell(**one) for one in json.loads(path.read_text("utf-8"))["cells"]]


def whole_seeds(cells: Sequence[RobustnessCell]) -> list[RobustnessCell]:
    """Return the cells of the seeds that have all rules, attacks and shares, so that rows can be compared."""
    keys, by_seed = {cell.key[:3] for cell in cells}, dict[int, list[RobustnessCell]]()
    for cell in cells:
        by_seed.setdefault(cell.seed, []).append(cell)
    return [cell for own in by_seed.values() if {one.key[:3] for one in own} == keys for cell in own]


def attacked_cells(cells: Sequence[RobustnessCell], share: float) -> list[RobustnessCell]:
    """Return the cells with a share of bad devices, of complete seeds."""
    return whole_seeds([cell for cell in cells if cell.bad == share])


def attacked(cells: Sequence[RobustnessCell], share: float) -> list[RobustnessRow]:
    """Return the rows with a share of bad devices, over complete seeds."""
    return summarise(attacked_cells(cells, share))


def cost(cells: dict[str, list[RobustnessCell]]) -> str:
    """Format user accuracy without attack by rule, with its mean difference from the plain mean over seeds, in points."""
    rules = list(dict.fromkeys(cell.defence for one in cells.values() for cell in one))
    rows = [(f"`{rule}`", *(_cost(rule, one) for one in cells.values())) for rule in rules]
    return table(("rule", *cells), rows)


def _cost(rule: str, cells: Sequence[RobustnessCell]) -> str:
    by_seed = {(cell.defence, cell.seed): cell.user_accuracy for cell in cells if cell.attack == NO_ATTACK}
    own = [seed for defence, seed in by_seed if defence == rule and (_MEAN, seed) in by_seed]
    if not own:
        return "-"
    accuracy = statistics.fmean(by_seed[rule, seed] for seed in own)
    if rule == _MEAN:
        return f"{accuracy:.3f}"
    points = 100 * statistics.fmean(by_seed[rule, seed] - by_seed[_MEAN, seed] for seed in own)
    return f"{accuracy:.3f}, {round(points, 2) + 0.0:+.2f}"  # no -0.00


def attacks(cells: Sequence[RobustnessCell], share: float) -> str:
    """Format user accuracy of the honest devices by rule and attack."""
    rows = attacked(cells, share)
    if not rows:
        return "No cell is computed yet.\n"
    lines = [
        (
            f"`{rule}`",
            *(_entry(own.get(kind)) for kind in _SHOWN),
            _entry(_lowest([own[one] for one in own.keys() - _SHOWN])),
        )
        for rule, own in _by_rule(rows)
    ]
    return table(("rule", *_SHOWN, "lowest of the others"), lines)


def shares(cells: Sequence[RobustnessCell], bad: Sequence[float]) -> str:
    """Format the lowest user accuracy over the attacks, by rule and share of bad devices."""
    by_share = {share: dict(_by_rule(attacked(cells, share))) for share in bad}
    rules = [rule for rule in by_share[bad[0]] if all(rule in rows for rows in by_share.values())]
    worst = {rule: [_lowest([*rows[rule].values()]) for rows in by_share.values()] for rule in rules}
    lines = [(f"`{rule}`", *(f"{row.user_accuracy:.3f}, {row.attack}" for row in own)) for rule, own in worst.items()]
    return table(("worst attack", *(f"{share:.0%} bad" for share in bad)), lines)


def seeds(rows: Sequence[RobustnessRow]) -> str:
    """Return the number of seeds of some rows: `5`, or the least and the most."""
    least, most = min(row.seeds for row in rows), max(row.seeds for row in rows)
    return str(least) if least == most else f"{least} to {most}"


def _by_rule(rows: Sequence[RobustnessRow]) -> list[tuple[str, dict[str, RobustnessRow]]]:
    rules = dict.fromkeys(row.defence for row in rows)
    return [(rule, {row.attack: row for row in rows if row.defence == rule}) for rule in rules]


def _lowest(rows: Sequence[RobustnessRow]) -> RobustnessRow:
    return min(rows, key=lambda one: one.user_accuracy)


def spread(cells: dict[str, list[RobustnessCell]], share: float) -> str:
    """Return the range of user accuracy over seeds, in points: the median over rules and attacks, and the greatest."""
    texts = []
    for name, one in cells.items():
        found: dict[tuple[str, str], list[float]] = {}
        for cell in attacked_cells(one, share):
            found.setdefault((cell.defence, cell.attack), []).append(cell.user_accuracy)
        ranges = [100 * (max(values) - min(values)) for values in found.values()]
        texts.append(f"{name} {statistics.median(ranges):.0f} points in the median, at most {max(ranges):.0f}")
    return f"That range is: {'; '.join(texts)}."


def processor(path: Path) -> str:
    """Return a sentence on processor time and memory of each rule, with the largest measured number of updates."""
    many = json.loads(path.read_text("utf-8"))["measured"][-1]
    mean, *others = many["rules"]
    texts = (
        f"`{one['rule']}` {one['ratio_to_mean']['median']:.1f} times and {size(one['peak_bytes'])}" for one in others
    )
    return (
        f"Processor time and memory with {many['updates']:,} updates of 50,000 values, beside `{mean['rule']}` "
        f"(1 and {size(mean['peak_bytes'])}): {', '.join(texts)}"
    )


def flower(cells: Sequence[RobustnessCell]) -> str:
    """Format Flower's functions under the attacks of digits."""
    rows = summarise(whole_seeds(cells))
    kinds = list(dict.fromkeys(row.attack for row in rows))
    lines = [(f"`{rule}`", *(_whole_entry(own.get(kind)) for kind in kinds)) for rule, own in _by_rule(rows)]
    return table((f"rule, {seeds(rows)} seeds", *kinds), lines)


def _entry(row: RobustnessRow | None) -> str:
    return "-" if row is None else f"{row.user_accuracy:.3f}"


def _entry_of(cells: Sequence[RobustnessCell], rule: str, attack: str) -> str:
    """Return the user accuracy of a rule under an attack."""
    [row] = [row for row in summarise(whole_seeds(cells)) if (row.defence, row.attack) == (rule, attack)]
    return f"{row.user_accuracy:.2f}"


def _behind_mean(cells: Sequence[RobustnessCell], rule: str, attack: str) -> str:
    """Return the points of user accuracy by which a rule is behind the mean under an attack by 20 % of the devices."""
    own = {row.defence: row.user_accuracy for row in attacked(cells, 0.2) if row.attack == attack}
    return f"{100 * (own[_MEAN] - own[rule]):.0f}"


def backdoor(cells: Iterable[Sequence[RobustnessCell]], share: float) -> str:
    """Return the least and the greatest success of the backdoor over rules and tasks."""
    rows = [row for one in cells for row in attacked(one, share)]
    found = [row.backdoor_success for row in rows if row.backdoor_success is not None]
    return f"{100 * min(found):.0f} to {100 * max(found):.0f} %"


def found(cells: Sequence[RobustnessCell], share: float, rules: Sequence[str] = ()) -> str:
    """Format the share of the bad devices among those pulled most, by rule and attack; without `rules`, for all rules."""
    rows = [row for row in attacked(cells, share) if row.defence in rules or (not rules and row.defence != _MEAN)]
    kinds = list(dict.fromkeys(row.attack for row in rows))
    lines = []
    for rule in dict.fromkeys(row.defence for row in rows):
        own = {row.attack: row.found for row in rows if row.defence == rule}
        lines.append((f"`{rule}`", *("-" if own.get(kind) is None else f"{own[kind]:.0%}" for kind in kinds)))
    return table(("rule", *kinds), lines)
