"""Words of the page results.md on what depends on the machine: results that were computed again, and their origins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from studies.pages.differences import or_infinity
from studies.paper.comparison import Comparison, compare
from studies.paper.experiments import RECORDED, TABLES, Cell, cells_of
from studies.paper.recheck import RELATIVE_SPREAD, SPREAD_ROUNDS, Recheck, rechecks
from studies.paper.results import Results
from studies.paper.tuning import choose_rates

_NEW_CHUNKS = "2026-11-26T09:27:48+00:00"  # the time of commit 3ecec4e3


def spread(store: Results) -> dict[str, str]:
    """Return the numbers for the text on results that were computed again: on the same machine, and on others.

    A cell has the same verdict if each computation of some of its seeds has the verdict of the recorded results of
    these seeds.
    """
    found = _rechecked(store)
    pairs = [one for groups in found.values() for group in groups for one in group]
    repeated, moved = ([one for one in pairs if _on_same_machine(one) is same] for same in (True, False))
    seeds = {one.cell.name: one.reached for one in compare(store, list(found))}
    verdicts = [all(_same_verdict(cell, group) for group in groups) for cell, groups in found.items()]
    return {
        "rechecked_on": ", ".join(sorted({one.again.processor or "" for one in pairs})),
        "repeated": str(len(repeated)),
        "repeated_same": str(sum(one.same for one in repeated)),
        "moved": str(len(moved)),
        "moved_same": str(sum(one.same for one in moved)),
        "moved_unnamed": str(sum(one.recorded.processor is None for one in moved)),
        "moved_versions": str(sum(one.recorded.versions != one.again.versions for one in moved)),
        "moved_order": str(sum(one.recorded.started_at < _NEW_CHUNKS <= one.again.started_at for one in moved)),
        "moved_outside": str(sum(_is_outside(one.again.rounds_to_target, seeds[one.again.cell]) for one in moved)),
        "rechecked": str(len(pairs)),
        "rechecked_w400": str(sum(one.again.study.clients == 400 for one in pairs)),
        "spread_share": _largest_change(moved, lambda before, after: abs(after - before) / before),
        "spread_rounds": _largest_change(moved, lambda before, after: abs(after - before)),
        "spread_ua": f"{max((one.largest_difference for one in moved), default=0.0):.3f}",
        "same_verdicts": f"{sum(verdicts)} of {len(verdicts)}",
        "allowed_share": f"{RELATIVE_SPREAD:.0%}".replace("%", " %"),
        "allowed_rounds": str(SPREAD_ROUNDS),
    }


def order_of_sums(store: Results) -> dict[str, str]:
    """Return the numbers for the text on results before and after a change of the code that reorders sums."""
    before, after = (Results(store.folder / "order-of-sums" / name) for name in ("before", "after"))
    pairs = [one for cell in cells_of("table2") for one in _pairs(cell, before, after)]
    return {
        "reordered_on": ", ".join(sorted({one.again.processor or "" for one in pairs})),
        "reordered": str(len(pairs)),
        "reordered_same": str(sum(one.same for one in pairs)),
        "reordered_rounds": _largest_change(pairs, lambda before, after: abs(after - before)),
    }


def origins(store: Results) -> str:
    """Return a sentence on the results of the tables and Fig. 5 with commit and processor, and on those without."""
    results = [
        result
        for cell in dict.fromkeys(cell for which in (*TABLES, "fig5") for cell in _named_cells(which, store))
        for seed in store.seeds(cell)
        if (result := store.read(cell, seed)) is not None
    ]
    named = [one.commit for one in results if one.commit is not None and one.processor is not None]
    changed = sum("-dirty" in commit for commit in named)
    return (
        f"{len(named)} of {len(results)} results of the tables and of Fig. 5 name commit and processor; {changed} of them "
        "name a commit with uncommitted changes (`-dirty`). The others are older and name neither (`git log "
        "--diff-filter=A -- results` has the commits that added them)."
    )


def _named_cells(which: str, store: Results) -> Iterable[Cell]:
    """Return the cells of a table. A cell of `tuned` has its best rates, or is the cell of Table 2 that has them."""
    return (choose_rates(cell, store) if which == "tuned" else cell for cell in cells_of(which))


def _rechecked(store: Results) -> dict[Cell, list[list[Recheck]]]:
    """Return the cells that were computed again, with the pairs of results of each folder of new results."""
    found: dict[Cell, list[list[Recheck]]] = {}
    for folder in sorted(path for path in (store.folder / "rechecks").glob("*") if path.is_dir()):
        for cell in (cell for which in RECORDED for cell in cells_of(which)):
            if group := _pairs(cell, store, Results(folder)):
                found.setdefault(cell, []).append(group)
    return found


def _pairs(cell: Cell, recorded: Results, again: Results) -> list[Recheck]:
    """Return a pair for each new result of the cell. Raises FileNotFoundError if it has no recorded one."""
    seeds = again.seeds(cell)
    pairs = rechecks([cell], seeds, recorded, again)
    if len(pairs) < len(seeds):
        raise FileNotFoundError(f"{cell.name}: a seed in {again.folder} has no result in {recorded.folder}")
    return pairs


def _on_same_machine(one: Recheck) -> bool:
    return (one.recorded.processor, one.recorded.versions) == (one.again.processor, one.again.versions)


def _same_verdict(cell: Cell, pairs: Sequence[Recheck]) -> bool:
    recorded = Comparison(cell, tuple(one.recorded for one in pairs))
    again = Comparison(cell, tuple(one.again for one in pairs))
    return recorded.within == again.within


def _is_outside(rounds: int | None, seeds: Sequence[int | None]) -> bool:
    """Return whether the rounds are fewer or more than those of each seed; None is more than any number."""
    new, *others = map(or_infinity, (rounds, *seeds))
    return not min(others) <= new <= max(others)


def _largest_change(pairs: Iterable[Recheck], size: Callable[[int, int], float]) -> str:
    rounds = (
        (before, after)
        for one in pairs
        if (before := one.recorded.rounds_to_target) is not None and (after := one.again.rounds_to_target) is not None
    )
    before, after = max(rounds, key=lambda pair: size(*pair), default=(0, 0))
    return f"{before} to {after}"
