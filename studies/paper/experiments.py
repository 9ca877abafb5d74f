"""The experiments of the paper as cells: one per setting of Table 2, Table 3 and Fig. 5, each with a name and its terms.

A cell has a name such as `table2/mnist/fedavg/affine/W200/C1.0`: table, task, strategy, private values, W clients, and the
share C of the clients that trains in a round.

Further tables test why cells of Table 2 differ from the paper's. `aligned` tests each client only on labels that it trains on,
`even` splits the test examples in the same way as the training examples; `table3-even` does so in Table 3. `tuned` takes the
learning rates of a grid that reach the target first, as the paper did (section 4.2); `tuning` has the single trials of that
grid, `tuning-even` the trials of the cells with private statistics (`all` and `stats`), on the split of `even`. `restarted`
and, on the split of `even`, `restarted-even` have the cells of FedAvg-Adam with a count of steps that restarts in each round
(studies.paper.restarted_adam), for three rates of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.simulator.spec.published_rates import PER_FEDAVG_RATES, PFEDME_RATES, SCENARIOS
from fedpatch.simulator.spec.study import Study
from studies.paper.published import (
    BATCH_SIZE,
    CLIENT_RATES,
    FIG_5,
    FIG_5_ROUNDS,
    MAX_ROUNDS,
    MISPRINTED,
    NOISY_FRACTION,
    PRIVATE,
    SERVER_RATE,
    TABLE_2,
    TABLE_3,
    TARGET_UA,
    Row,
)

Rates = tuple[float, float | None]
TUNING = "tuning"
SPLITS = ("aligned", "even")
TABLE3_EVEN = "table3-even"
NOISY = ("table3", TABLE3_EVEN)
TUNING_EVEN = "tuning-even"
TRIALS = (TUNING, TUNING_EVEN)
RESTARTED, RESTARTED_EVEN = "restarted", "restarted-even"
RESTARTS = (RESTARTED, RESTARTED_EVEN)
SPLIT_OF = {**{split: split for split in SPLITS}, **dict.fromkeys((TABLE3_EVEN, TUNING_EVEN, RESTARTED_EVEN), "even")}
"""The split of each table that does not have the paper's."""
TABLES = ("table2", "table3", *SPLITS, TABLE3_EVEN, "tuned", *TRIALS, *RESTARTS)
WITH_CELLS = (*TABLES, "fig5")
RECORDED = ("table2", "table3", *SPLITS, TABLE3_EVEN)
"""Tables whose cells `check` computes again."""

TUNING_SEED = 1000
"""The seed that chooses the learning rates; no result is reported with it."""
TUNED_STRATEGIES = ("fedadam", "fedavg-adam")
RATE_GRID: Mapping[str, tuple[Rates, ...]] = {
    "fedavg-adam": tuple((rate, None) for rate in (0.001, 0.003, 0.01, 0.03)),
    "fedadam": tuple((rate, server) for rate in (0.03, 0.1, 0.3) for server in (0.003, 0.01, 0.03, 0.1)),
}
"""Learning rates of client and server, tried in this order; if results are equal, the first rate is taken."""
_TUNING_MARGIN = 1.25  # times the paper's rounds: a rate that needs more rounds is not the best
_RESTARTED_RATES = (0.003, 0.01, 0.03)
_RESTARTED_STRATEGY = "studies.paper.restarted_adam:RestartedAdam"
_RESTARTED_MARGIN = 2  # times the paper's rounds, so that the mean of several seeds is known near the paper's number

_SPLIT = "{index}/{count},seed={seed}"
_GLOB_CHARACTERS = set("*?[")


@dataclass(frozen=True)
class Cell:
    """One setting.

    `clients` is the paper's W, `participation` its C, `max_rounds` the rounds after which a simulation ends. `paper` is the
    number of rounds that the paper needed, None if it did not reach the target. If `compared` is False, the paper has no
    number to compare with. `rates` are the learning rates of client and server, None for the published ones.
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
    rates: Rates | None = None

    @property
    def name(self) -> str:
        """Name of the table or figure, and the setting."""
        return f"{self.where}/{self.short_name}"

    @property
    def short_name(self) -> str:
        """The setting: the cell's name within the table or figure."""
        name = f"{self.task}/{self.strategy}/{self.private}/W{self.clients}/C{self.participation}"
        return f"{name}/{self.rates_name}" if self.names_rates else name

    @property
    def names_rates(self) -> bool:
        """True if the name holds the learning rates, since the table has the setting with several."""
        return self.where in TRIALS or self.where in RESTARTS

    @property
    def rates_name(self) -> str:
        """The learning rates, such as `rate0.3-server0.01`; empty for the published ones."""
        if self.rates is None:
            return ""
        client, server = self.rates
        return f"rate{client}" if server is None else f"rate{client}-server{server}"

    @property
    def target_ua(self) -> float | None:
        """User accuracy at which the simulation ends; None in Fig. 5, where every round is run."""
        return None if self.where == "fig5" else TARGET_UA[self.task]


def cells_of(which: str) -> tuple[Cell, ...]:
    """Return all cells of one of WITH_CELLS, in the order of the paper. Raises UsageError for another name."""
    if which not in WITH_CELLS:
        raise unknown_name("table or figure with cells", which, WITH_CELLS)
    if which == "fig5":
        return tuple(_fig5_cells())
    if which == TABLE3_EVEN:
        return tuple(replace(one, where=which) for one in cells_of("table3") if one.task == "mnist" and one.compared)
    if which == TUNING:
        return tuple(trial for cell in cells_of("tuned") for trial in rate_cells(cell))
    if which == TUNING_EVEN:
        trials = (one for one in cells_of(TUNING) if one.task == "mnist" and one.private in ("all", "stats"))
        return tuple(replace(one, where=which) for one in trials)
    if which in RESTARTS:
        return tuple(_restarted_cells(which))
    cells = _table_cells(which, TABLE_3 if which == "table3" else TABLE_2)
    if which in SPLITS:
        return tuple(one for one in cells if one.task == "mnist")
    return tuple(one for one in cells if which != "tuned" or one.strategy in TUNED_STRATEGIES)


def rate_cells(cell: Cell) -> tuple[Cell, ...]:
    """Return a trial for each learning rate of `cell`, a cell of table `tuned`, in the order of RATE_GRID."""
    rounds = cell.max_rounds if cell.paper is None else math.ceil(_TUNING_MARGIN * cell.paper)
    return tuple(replace(cell, where=TUNING, rates=rates, max_rounds=rounds) for rates in RATE_GRID[cell.strategy])


def _restarted_cells(where: str) -> Iterator[Cell]:
    for cell in cells_of("tuned"):
        if (cell.task, cell.strategy) == ("mnist", "fedavg-adam") and cell.paper is not None:
            rounds = _RESTARTED_MARGIN * cell.paper
            for rate in _RESTARTED_RATES:
                yield replace(cell, where=where, rates=(rate, None), max_rounds=rounds)


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
    """Return the cells of `which` that match `patterns`: shell globs separated by commas; None means all.

    A glob matches a name, with or without `which/` before it, or the beginning of a name up to a `/`; its `*` also matches
    `/`. So `mnist/*/affine`, `*/W200/*` and `cifar10/fedavg` are all valid. Raises UsageError for a glob without a match.
    """
    cells = cells_of(which)
    if patterns is None:
        return cells
    wanted = _globs(patterns, "mnist/*/affine/W200/*")
    for pattern in wanted:
        if not any(_fits(cell, pattern) for cell in cells):
            raise _no_such_cell(which, pattern, cells)
    return tuple(cell for cell in cells if any(_fits(cell, pattern) for pattern in wanted))


def select_named_cells(patterns: str) -> tuple[Cell, ...]:
    """Return the cells of all tables that match `patterns`; each pattern begins with its table, as `table2/mnist/*`.

    Raises:
        UsageError: There is no pattern, or one names no cell, or no table whose cells have a target and published rates.
    """
    chosen: list[Cell] = []
    for pattern in _globs(patterns, "table2/mnist/*/affine/W200/*"):
        where, _, rest = pattern.partition("/")
        if where not in RECORDED:
            raise unknown_name("table", where, RECORDED)
        chosen += select_cells(where, rest or None)
    return tuple(dict.fromkeys(chosen))


def _globs(patterns: str, example: str) -> list[str]:
    wanted = [one.strip() for one in patterns.split(",") if one.strip()]
    if not wanted:
        raise UsageError(f"--cells {patterns!r} asks for nothing; write a glob such as {example!r}")
    return wanted


def study_of(cell: Cell, seed: int) -> Study:
    """Return the study of a cell with this seed and the published learning rates.

    The seed also draws the split, as in a trial of the paper. In Table 3 a fifth of the clients have noise.
    """
    kind = SPLIT_OF.get(cell.where, "shard")
    noise = f",noisy-fraction={NOISY_FRACTION}"
    rate, server_rate, adaptation_rate, proximity = _rates(cell)
    return Study(
        task=cell.task,
        clients=cell.clients,
        strategy=_RESTARTED_STRATEGY if cell.where in RESTARTS else cell.strategy,
        private=cell.private,
        data=f"{kind}:{_SPLIT}{noise if cell.where in NOISY else ''}",
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
    """Return every cell with every seed, seed by seed, and for each seed quick cells before slow ones."""
    by_cost = sorted(cells, key=_cost)
    return [(cell, seed) for seed in seeds for cell in by_cost]


def _cost(cell: Cell) -> float:
    """Return the approximate computing time of a cell, in rounds of MNIST with every client and FedAvg.

    A round trains every selected example once, for any W; a round of CIFAR-10 takes about twenty times as long.
    """
    rounds = cell.paper if cell.compared and cell.paper is not None else cell.max_rounds
    passes = {"per-fedavg": 2.0, "fedavg-adam": 1.5, "pfedme": 1.5}.get(cell.strategy, 1.0)
    return (rounds + 1) * cell.participation * passes * (20.0 if cell.task == "cifar10" else 1.0)


def table2_rates(cell: Cell) -> Rates:
    """Return the learning rates of client and server that the cell has in Table 2."""
    return _rates(replace(cell, rates=None))[:2]


def _rates(cell: Cell) -> tuple[float, float | None, float | None, float | None]:
    """Return (learning rate, server learning rate, alpha, lambda) as Study has them."""
    if cell.rates is not None:
        return *cell.rates, None, None
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
    """Return the pattern with unknown words replaced by the nearest known ones; None if that finds no cell either."""
    known = sorted({part for cell in cells for part in cell.short_name.split("/")})
    corrected = "/".join(
        part
        if part in known or set(part) & _GLOB_CHARACTERS
        else next(iter(get_close_matches(part, known, 1, 0.4)), "")
        for part in pattern.split("/")
    )
    return corrected if corrected and any(_fits(cell, corrected) for cell in cells) else None
