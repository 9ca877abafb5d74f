"""Words of the page results.md on what depends on the machine: results that were computed again, and their origins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedpatch.simulator.paper.comparison import Comparison, compare
from fedpatch.simulator.paper.experiments import RECORDED, TABLES, Cell, cells_of
from fedpatch.simulator.paper.recheck import Recheck, rechecks
from fedpatch.simulator.paper.results import Results
from fedpatch.simulator.paper.tuning import choose_rates

_MOST_SEEDS = 5


def spread(store: Results) -> dict[str, str]:
    """Return the numbers for the text on results that were computed again: on the same machine, and on others.

    A cell has the same verdict if it has it on each processor, with the same seeds.
    """
    found = _rechecked(store)
    pairs = [one for pairs in found.values() for one in pairs]
    repeated, moved = ([one for one in pairs if _on_same_machine(one) is same] for same in (True, False))
    by_seed = [[rounds for rounds in one.reached if rounds is not None] for one in compare(store, list(found))]
    verdicts = [_same_verdict(cell, pairs) for cell, pairs in found.items()]
    return {
        "rechecked_on": ", ".join(sorted({one.again.processor or "" for one in pairs})),
        "repeated": str(len(repeated)),
        "repeated_same": str(sum(one.same for one in repeated)),
        "moved": str(len(moved)),
        "moved_same": str(sum(one.same for one in moved)),
        "moved_unnamed": str(sum(one.recorded.processor is None for one in moved)),
        "rechecked": str(len(pairs)),
        "rechecked_w400": str(sum(one.again.study.clients == 400 for one in pairs)),
        "spread_share": _largest_change(moved, lambda before, after: abs(after - before) / before),
        "spread_rounds": _largest_change(moved, lambda before, after: abs(after - before)),
        "spread_seeds": str(max((max(one) - min(one) for one in by_seed if one), default=0)),
        "spread_ua": f"{max((one.largest_difference for one in moved), default=0.0):.3f}",
        "same_verdicts": f"{sum(verdicts)} of {len(verdicts)}",
    }


def order_of_sums(store: Results) -> dict[str, str]:
    """Return the numbers for the text on results before and after a change of the code, each pair on one processor."""
    pairs = [
        pair
        for folder in _folders(store.folder / "order-of-sums")
        for pair in rechecks(
            cells_of("table2"), range(_MOST_SEEDS), Results(folder), Results(store.folder / "rechecks" / folder.name)
        )
    ]
    return {
        "reordered": str(len(pairs)),
        "reordered_same": str(sum(one.same for one in pairs)),
        "reordered_rounds": _largest_change(pairs, lambda before, after: abs(after - before)),
    }


def origins(store: Results) -> str:
    """Return a sentence on the results of the tables and Fig. 5 with commit and processor, and on those without."""
    results = [
        result
        for cell in dict.fromkeys(cell for which in (*TABLES, "fig5") for cell in named_cells(which, store))
        for seed in store.seeds(cell)
        if (result := store.read(cell, seed)) is not None
    ]
    named = sum(one.commit is not None and one.processor is not None for one in results)
    return (
        f"{named} of {len(results)} results of the tables and of Fig. 5 name commit and processor. The others are older "
        "and name neither (`git log --diff-filter=A -- results` has the commits that added them)."
    )


def named_cells(which: str, store: Results) -> Iterable[Cell]:
    """Return the cells of a table; those of `tuned` with their chosen rates are cells of Table 2, if its rates are best."""
    return (choose_rates(cell, store) if which == "tuned" else cell for cell in cells_of(which))


def _rechecked(store: Results) -> dict[Cell, list[Recheck]]:
    """Return the cells that were computed again, with a pair of results for each seed and processor."""
    found: dict[Cell, list[Recheck]] = {}
    for folder in _folders(store.folder / "rechecks"):
        again = Results(folder)
        for cell in (cell for which in RECORDED for cell in cells_of(which)):
            for seed in again.seeds(cell):
                found.setdefault(cell, []).append(_recheck(cell, seed, store, again))
    return found


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.glob("*") if one.is_dir())


def _recheck(cell: Cell, seed: int, store: Results, again: Results) -> Recheck:
    recorded, new = store.read(cell, seed), again.read(cell, seed)
    if recorded is None or new is None:
        raise FileNotFoundError(f"{cell.name}, seed {seed}: one of the two results is missing")
    return Recheck(recorded, new)


def _on_same_machine(one: Recheck) -> bool:
    return (one.recorded.processor, one.recorded.versions) == (one.again.processor, one.again.versions)


def _same_verdict(cell: Cell, pairs: Sequence[Recheck]) -> bool:
    processors = {one.again.processor for one in pairs}
    chosen = ([one for one in pairs if one.again.processor == processor] for processor in processors)
    return all(
        Comparison(cell, tuple(one.recorded for one in some)).within
        == Comparison(cell, tuple(one.again for one in some)).within
        for some in chosen
    )


def _largest_change(pairs: Iterable[Recheck], size: Callable[[int, int], float]) -> str:
    rounds = (
        (before, after)
        for one in pairs
        if (before := one.recorded.rounds_to_target) is not None and (after := one.again.rounds_to_target) is not None
    )
    before, after = max(rounds, key=lambda pair: size(*pair), default=(0, 0))
    return f"{before} to {after}"
