"""The experiments of the paper as cells: one per setting of Table 2, Table 3 and Fig. 5, each with a name and its terms.

A cell's name is `table2/mnist/fedavg/affine/W200/C1.0`: where it stands, the task, the strategy, what is private, W
clients, of whom the share C takes part in a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.simulator.spec.published import (
    BATCH_SIZE,
    CLIENT_RATES,
    FIG_5,
    FIG_5_ROUNDS,
    MAX_ROUNDS,
    MISPRINTED,
    NOISY_FRACTION,
    PER_FEDAVG_RATES,
    PFEDME_RATES,
    PRIVATE,
    SCENARIOS,
    SERVER_RATE,
    TABLE_2,
    TABLE_3,
    TARGET_UA,
    Row,
)
from fedpatch.simulator.spec.study import Study

TABLES = ("table2", "table3")
WITH_CELLS = (*TABLES, "fig5")

_DATA = "shard:{index}/{count},seed={seed}"
_GLOB_CHARACTERS = set("*?[")


@dataclass(frozen=True)
class Cell:
    """One setting. `clients` is the paper's W, `participation` its C, `max_rounds` how long it is tried.

    `paper` is the number of rounds that the paper needed, None where it did not reach the target. Where `compared` is
    False, the paper gives no number that ours can be held against.
    """

    where: str
    task: str
    strategy: str
    private: str
    clients: int
    participation: float
    paper: int | None
    compared: bool
    max_rounds: int

    @property
    def name(self) -> str:
        """Where it stands, and its setting."""
        return f"{self.where}/{self.short_name}"

    @property
    def short_name(self) -> str:
        """Its setting: its name within the table or figure."""
        return f"{self.task}/{self.strategy}/{self.private}/W{self.clients}/C{self.participation}"

    @property
    def target_ua(self) -> float | None:
        """User accuracy at which the cell is done; None in Fig. 5, where every round is played."""
        return TARGET_UA[self.task] if self.where in TABLES else None


def cells_of(which: str) -> tuple[Cell, ...]:
    """All cells of `table2`, `table3` or `fig5`, in the order of the paper. Raises UsageError for another name."""
    if which not in WITH_CELLS:
        raise unknown_name("table or figure with cells", which, WITH_CELLS)
    if which == "fig5":
        return tuple(_fig5_cells())
    return tuple(_table_cells(which, TABLE_2 if which == "table2" else TABLE_3))


def _table_cells(where: str, table: Mapping[str, Mapping[str, Row]]) -> Iterator[Cell]:
    settings = [(private, *scenario) for private in PRIVATE for scenario in SCENARIOS]
    for task, rows in table.items():
        for strategy, row in rows.items():
            for (private, clients, participation), paper in zip(settings, row, strict=True):
                compared = (where, task, private) != MISPRINTED
                yield Cell(where, task, strategy, private, clients, participation, paper, compared, MAX_ROUNDS)


def _fig5_cells() -> Iterator[Cell]:
    for task in TARGET_UA:
        for clients, participation in SCENARIOS:
            for strategy, private in FIG_5:
                yield Cell("fig5", task, strategy, private, clients, participation, None, False, FIG_5_ROUNDS)


def select_cells(which: str, patterns: str | None) -> tuple[Cell, ...]:
    """The cells of `which` that `patterns` asks for: shell globs with commas between them; None means all.

    A glob stands for a name, with or without `which/` before it, or for the beginning of one up to a `/`; its `*` also
    matches `/`. So `mnist/*/affine`, `*/W200/*` and `cifar10/fedavg` are all good. Raises UsageError for one that finds
    nothing.
    """
    cells = cells_of(which)
    if patterns is None:
        return cells
    wanted = [one.strip() for one in patterns.split(",") if one.strip()]
    if not wanted:
        raise UsageError(f"--cells {patterns!r} asks for nothing; write a glob such as 'mnist/*/affine/W200/*'")
    for pattern in wanted:
        if not any(_fits(cell, pattern) for cell in cells):
            raise _no_such_cell(which, pattern, cells)
    return tuple(cell for cell in cells if any(_fits(cell, pattern) for pattern in wanted))


def study_of(cell: Cell, seed: int) -> Study:
    """What is to be simulated for a cell with this seed, on the published learning rates.

    The seed draws the split too, as a trial of the paper's does. Table 3 gives noise to a fifth of the clients.
    """
    rate, server_rate, adaptation_rate, proximity = _rates(cell)
    return Study(
        task=cell.task,
        clients=cell.clients,
        strategy=cell.strategy,
        private=cell.private,
        data=f"{_DATA},noisy-fraction={NOISY_FRACTION}" if cell.where == "table3" else _DATA,
        participation=cell.participation,
        rounds=cell.max_rounds,
        target_ua=cell.target_ua,
        seed=seed,
        learning_rate=rate,
        batch_size=BATCH_SIZE,
        server_learning_rate=server_rate,
        adaptation_rate=adaptation_rate,
        proximity=proximity,
    )


def in_order(cells: Iterable[Cell], seeds: Sequence[int]) -> list[tuple[Cell, int]]:
    """Every cell with every seed: the first seed of all cells before the second of any, and cheap cells before dear ones."""
    by_cost = sorted(cells, key=_cost)
    return [(cell, seed) for seed in seeds for cell in by_cost]


def _cost(cell: Cell) -> float:
    """Roughly how long it takes, in rounds of MNIST with every client and FedAvg.

    A round trains every selected example once, whatever W is; one of CIFAR-10 takes some twenty times as long.
    """
    rounds = cell.paper if cell.compared and cell.paper is not None else cell.max_rounds
    passes = {"per-fedavg": 2.0, "fedavg-adam": 1.5, "pfedme": 1.5}.get(cell.strategy, 1.0)
    return (rounds + 1) * cell.participation * passes * (20.0 if cell.task == "cifar10" else 1.0)


def _rates(cell: Cell) -> tuple[float, float | None, float | None, float | None]:
    """(learning rate, server learning rate, alpha, lambda), as Study wants them."""
    scenario = SCENARIOS.index((cell.clients, cell.participation))
    if cell.strategy == "per-fedavg":
        alpha, beta = PER_FEDAVG_RATES[cell.task][scenario]
        return beta, None, alpha, None
    if cell.strategy == "pfedme":
        eta, proximity = PFEDME_RATES[cell.task][scenario]
        return eta, None, None, proximity
    return CLIENT_RATES[cell.task, cell.strategy], SERVER_RATE if cell.strategy == "fedadam" else None, None, None


def _fits(cell: Cell, pattern: str) -> bool:
    pattern = pattern.removeprefix(f"{cell.where}/").rstrip("/")
    parts = cell.short_name.split("/")
    return any(fnmatchcase("/".join(parts[:length]), pattern) for length in range(1, len(parts) + 1))


def _no_such_cell(which: str, pattern: str, cells: Sequence[Cell]) -> UsageError:
    near = _near(pattern.removeprefix(f"{which}/"), cells)
    hint = (
        f"did you mean {near!r}?"
        if near
        else f"a cell is called {cells[0].short_name}, for one; a glob begins with the task or with *"
    )
    return UsageError(f"--cells {pattern!r} matches no cell of {which}; {hint}")


def _near(pattern: str, cells: Sequence[Cell]) -> str | None:
    """The pattern with the nearest of the known words in the place of unknown ones, if that finds something."""
    known = sorted({part for cell in cells for part in cell.short_name.split("/")})
    mended = "/".join(
        part
        if part in known or set(part) & _GLOB_CHARACTERS
        else next(iter(get_close_matches(part, known, 1, 0.4)), "")
        for part in pattern.split("/")
    )
    return mended if mended and any(_fits(cell, mended) for cell in cells) else None
