"""Cells of the paper's tables by its authors' published code, to compare the code's results with the printed ones.

    git clone https://github.com/JedMills/MTFL-For-Personalised-DNNs
    FEDPATCH_DATA=... python -m studies.published_code --code MTFL-For-Personalised-DNNs --cells 'table2/mnist/*'

The published program runs unchanged except for these parts, which are replaced in memory: the progress bar and the arrays of
results, to end at the target; the function that saves a result; and, for a torch newer than 1.7, `torch.set_deterministic` and
the step number of Adam's state, which is a tensor now. Only MNIST: the program reads CIFAR-10 in another format.

Two effects of the program are not in the paper. With FedAvg-Adam on a CPU, the arrays of the first round's moments share
their memory with the optimizer, so each client continues with the moments of the previous client. On a GPU they are copies:
`--copied` makes copies on a CPU too. Each strategy also starts after a step on images of zeros with the label 0, which changes
the initial model and moments. `--corrected` removes both effects.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.support.programs import checkout_commit
from benchmarks.support.report import command_line
from fedpatch.shared.app.command import command, run_app, say
from fedpatch.shared.app.provenance import source_commit
from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.shared.tasks.task import data_root
from fedpatch.simulator.experiment.cell_file import CellFile
from fedpatch.simulator.spec.compute import Device, device_name
from studies.paper.experiments import TUNING, Cell, select_cells, study_of
from studies.paper.published import NOISY_FRACTION, TARGET_UA
from studies.processor import name_processor

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_NAME = "studies.published_code"
_REPORTED = 10
"""Rounds from one line of progress to the next."""
_PRIVATE = {"none": "none", "stats": "us", "affine": "yb", "all": "usyb"}
_DEVICES = {"cpu": "cpu", "cuda": "gpu"}
"""The published program's name of each of DEVICES."""
_ADAM = {"fedadam": "1e-4", "fedavg-adam": "1e-7"}
"""Epsilon of each strategy with Adam, as in the published program's manual."""
_TABLES = ("table2", "table3", TUNING)


@dataclass(frozen=True)
class PublishedCell:
    """One cell with one seed, by the published program.

    Attributes:
        cell: Name of the cell, such as `table2/mnist/fedavg/affine/W200/C1.0`, or of a trial of learning rates.
        seed: The seed.
        rounds_to_target: Completed rounds when user accuracy first reaches the target; None: never in `curve`.
        curve: User accuracy after 0, 1, 2, ... rounds.
        seconds: Computing time.
        corrected: Whether the two effects above were removed.
        origin: Command, commit, version of torch, and processor.
        device: "cpu" or "cuda".
        copied: Whether only the first effect was removed, on a CPU.
    """

    cell: str
    seed: int
    rounds_to_target: int | None
    curve: list[float]
    seconds: float
    corrected: bool = False
    origin: dict[str, str | None] = field(default_factory=dict)
    device: str = "cpu"
    copied: bool = False

    @property
    def key(self) -> tuple[str, int, bool, str, bool]:
        """The terms that identify a cell."""
        return self.cell, self.seed, self.corrected, self.device, self.copied

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        return len(self.curve) - 1


class RoundLimit:
    """Replaces the program's progress bar, and ends its loop over the rounds once user accuracy reaches the target.

    Args:
        target_ua: The target.
    """

    def __init__(self, target_ua: float) -> None:
        self._target_ua = target_ua
        self._accuracies: np.ndarray = np.zeros(0)
        self.curve: list[float] = []

    def keep_arrays(self, rounds: int) -> tuple[np.ndarray, ...]:
        """Return four arrays for the program's results, as its own function does, and keep the last one to read it."""
        arrays = tuple(np.zeros(rounds, dtype=np.float32) for _ in range(4))
        self._accuracies = arrays[-1]
        return arrays

    def progressbar(self, rounds: range) -> Iterator[int]:
        """Yield the rounds until the target is reached."""
        for at in rounds:
            yield at
            self.curve.append(round(float(self._accuracies[at]), 5))
            if at % _REPORTED == 0:
                say(f"{at} rounds: user accuracy {self.curve[-1]:.3f}")
            if self.curve[-1] >= self._target_ua:
                return


def adapt_program(*, copied: bool, corrected: bool) -> None:
    """Adapt the published program to this process; `sys.path` must contain it.

    Args:
        copied: Copy the moments.
        corrected: Copy the moments, and start without a step on zeros.
    """
    sys.modules["progressbar"] = ModuleType("progressbar")
    sys.modules["progressbar"].progressbar = iter  # type: ignore[attr-defined]  # until `play` sets its own
    import_module("main").save_data = lambda *_: None  # type: ignore[attr-defined]
    torch.set_deterministic = torch.use_deterministic_algorithms  # type: ignore[attr-defined]  # its name in torch 1.7
    _adapt_adam(import_module("optimisers"), copied=copied or corrected)
    if corrected:
        _start_at_zero(import_module("models"))


def play(cell: Cell, seed: int, rounds: int, device: str) -> list[float]:
    """Run the published program, after `adapt_program`.

    Args:
        cell: The cell.
        seed: Its seed.
        rounds: The most rounds to run.
        device: "cpu" or "cuda".

    Returns:
        User accuracy after 0, 1, 2, ... rounds, to the target or to `rounds`.
    """
    limit = RoundLimit(TARGET_UA[cell.task])
    algorithms, program = import_module("fl_algs"), import_module("main")
    algorithms.progressbar, algorithms.init_stats_arrays = limit.progressbar, limit.keep_arrays  # type: ignore[attr-defined]
    study = study_of(cell, seed)
    words = {
        "dset": cell.task, "alg": cell.strategy, "C": cell.participation, "B": study.batch_size, "T": rounds + 1, "E": 1,
        "device": _DEVICES[device], "W": cell.clients, "seed": seed, "lr": study.learning_rate,
        "noisy_frac": NOISY_FRACTION if cell.where == "table3" else 0.0, "bn_private": _PRIVATE[cell.private],
    }  # fmt: skip
    if cell.strategy in _ADAM:
        words |= {"beta1": 0.9, "beta2": 0.999, "epsilon": _ADAM[cell.strategy]}
    if cell.strategy == "fedadam":
        words["server_lr"] = study.server_learning_rate
    with TemporaryDirectory() as folder:
        Path(folder, "MNIST_data").symlink_to(data_root().resolve() / "mnist")
        place = Path(folder, "program")
        place.mkdir()
        given = sys.argv
        # The program also reads its name from the list.
        sys.argv = program.argv = ["main.py"]  # type: ignore[attr-defined]
        sys.argv += (str(part) for name, value in words.items() for part in (f"-{name}", value))
        try:
            with chdir(place), redirect_stdout(io.StringIO()):
                program.main()
        finally:
            sys.argv = given
    return limit.curve


def _adapt_adam(optimisers: Any, *, copied: bool) -> None:
    """Let the program average Adam's step numbers as numbers, although torch has tensors; if `copied`, copy the moments."""
    adam, model = optimisers.ClientAdam, optimisers.NumpyModel
    read, write = adam.get_params, adam.set_params

    def get_params(self: Any) -> Any:
        values = read(self).params
        return model([float(one) if isinstance(one, torch.Tensor) else one.copy() if copied else one for one in values])

    def set_params(self: Any, params: Any) -> None:
        write(self, params)
        for state in self.state.values():
            state["step"] = torch.tensor(float(state["step"]))

    adam.get_params, adam.set_params = get_params, set_params


def _start_at_zero(models: Any) -> None:
    """Undo the step by which the program makes Adam's state: restore the initial model, with moments and step number 0."""
    model = models.FLModel
    prepare = model.set_optim

    def set_optim(self: Any, optimizer: Any, *arguments: Any, **options: Any) -> None:
        before = self.get_params()
        prepare(self, optimizer, *arguments, **options)
        self.set_params(before)
        for state in optimizer.state.values():
            state.update({name: torch.zeros_like(torch.as_tensor(value)) for name, value in state.items()})

    model.set_optim = set_optim


def choose_cells(patterns: str) -> list[Cell]:
    """Return the cells of MNIST that match globs; each glob begins with a table.

    Raises:
        UsageError: A glob names no table, or no cell of MNIST.
    """
    chosen = []
    for pattern in patterns.split(","):
        where, _, rest = pattern.strip().partition("/")
        if where not in _TABLES:
            raise unknown_name(f"table in {pattern!r}", where, _TABLES)
        cells = [one for one in select_cells(where, rest or None) if one.task == "mnist"]
        if not cells:
            raise UsageError(f"--cells {pattern!r} names no cell of MNIST")
        chosen += cells
    return chosen


@command(app, "published_code", example=f"python -m {_NAME} --code DIR --cells 'table2/mnist/*/all/W200'")
def play_cells(
    code: Annotated[Path, typer.Option(metavar="DIR", help="Checkout of the published code.")],
    cells: Annotated[
        str, typer.Option(metavar="GLOBS", help=f"Globs of cells of MNIST, which begin with {', '.join(_TABLES)}.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for all results; a repeated command goes on with it.")
    ] = Path("results/published/mnist.json"),
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0 on.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="The most rounds of a cell.")] = 100,
    corrected: Annotated[
        bool, typer.Option("--corrected", help="Remove two effects that the paper does not describe.")
    ] = False,
    copied: Annotated[
        bool, typer.Option("--copied", help="Copy Adam's moments on a CPU, as the program does on a GPU.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Play cells of the paper's tables, or trials of learning rates, by the code that the paper's authors published."""
    if copied and (corrected or device != "cpu"):
        raise UsageError("--copied: --corrected and a GPU copy the moments anyway; leave it out")
    chosen, device = choose_cells(cells), device_name(device)
    folder = code.resolve()
    table = CellFile(out, {"published_code": checkout_commit(folder)}, PublishedCell, _NAME)
    origin = {
        "command": command_line(_NAME),
        "commit": source_commit(),
        "torch": torch.__version__,
        "processor": name_processor(device),
    }
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)
    adapt_program(copied=copied, corrected=corrected)
    for seed in range(seeds):
        for cell in chosen:
            before = table.cells.get((cell.name, seed, corrected, device, copied))
            if before is not None and (before.rounds_to_target is not None or before.rounds >= rounds):
                continue
            say(f"{cell.name}, seed {seed}")
            begun = time.monotonic()
            curve = play(cell, seed, rounds, device)
            reached = len(curve) - 1 if curve[-1] >= TARGET_UA[cell.task] else None
            seconds = round(time.monotonic() - begun, 1)
            table.add(PublishedCell(cell.name, seed, reached, curve, seconds, corrected, origin, device, copied))
            say(f"{cell.name}, seed {seed}: {f'not in {rounds}' if reached is None else reached} rounds")


if __name__ == "__main__":
    run_app(app, f"python -m {_NAME}")
