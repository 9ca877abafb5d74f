"""The cells of the testbed's table: dataset, scheme, and encoding of updates."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.shared.errors import UsageError

DEVICES = 10
CPUS = {"pi-2b": 0.1, "pi-3b": 0.15}
"""Share of one processor, by kind of device; five devices of each kind, as in the paper. All use 1.25 processors together."""
ENCODINGS = {"off": "fp32+zstd", "on": "delta-int8"}
SCHEMES = ("fl", "mtfl", "independent")
STRATEGY = {"fl": ("fedavg", "none"), "mtfl": ("fedavg-adam", "affine")}
TITLES = {"fl": "FL(FedAvg)", "mtfl": "MTFL(FedAvg-Adam)", "independent": "Independent"}


@dataclass(frozen=True)
class Dataset:
    """Data, model and links. Data are split for `shares` devices, more than the testbed has if rounds would be too long.

    `rate_bit_s` is the rate of each device's link, both ways: with this rate and `CPUS`, the shares of the rounds' time with
    fp32 are roughly those of the paper's table. The paper's figures also imply a faster link for the CNN than for the 2NN.
    """

    task: str
    model: str
    shares: int
    rate_bit_s: float

    def data(self, device: int, seed: int) -> str:
        """Return the data spec of a device, numbered from 0: two shards, as in the paper's simulations."""
        return f"shard:{device}/{self.shares},seed={seed}"


DATASETS = {
    "mnist": Dataset("mnist", "MNIST, 2NN", DEVICES, 20e6),
    "cifar10": Dataset("cifar10", "CIFAR-10 (JPEG q75), CNN", 80, 60e6),
    "digits": Dataset("digits", "digits (a smoke test)", DEVICES, 20e6),
}


@dataclass(frozen=True)
class Cell:
    """One line of the table, or the same with other encodings."""

    dataset: str
    scheme: str
    encodings: str

    @property
    def name(self) -> str:
        """Name of the cell for `--cells`."""
        parts = (
            (self.dataset, self.scheme) if self.scheme == "independent" else (self.dataset, self.scheme, self.encodings)
        )
        return "-".join(parts)


@dataclass(frozen=True)
class PaperRow:
    """A row of Table 4: seconds per round, and the percentage of each part."""

    round_s: float
    down: float
    client: float
    up: float
    server: float


PAPER = {
    ("mnist", "fl"): PaperRow(30, 5, 88, 6, 1),
    ("mnist", "mtfl"): PaperRow(38, 11, 76, 12, 1),
    ("mnist", "independent"): PaperRow(29, 0, 100, 0, 0),
    ("cifar10", "fl"): PaperRow(108, 5, 86, 5, 4),
    ("cifar10", "mtfl"): PaperRow(136, 11, 74, 12, 3),
    ("cifar10", "independent"): PaperRow(100, 0, 100, 0, 0),
}


def cells_of(datasets: tuple[str, ...]) -> list[Cell]:
    """Return all cells of these datasets, in the order of the table."""
    return [
        Cell(dataset, scheme, encodings)
        for dataset in datasets
        for scheme in SCHEMES
        for encodings in ENCODINGS
        if scheme != "independent" or encodings == "off"
    ]


def find_cells(text: str, datasets: tuple[str, ...]) -> list[Cell]:
    """Return the cells that a list with commas names; a prefix names all cells that begin with it. Empty: all."""
    known = cells_of(datasets)
    if not text:
        return known
    wanted = [word.strip() for word in text.split(",")]
    for word in wanted:
        if not any(_named(cell, word) for cell in known):
            raise UsageError(f"no cell is called {word!r}; there are {', '.join(cell.name for cell in known)}")
    return [cell for cell in known if any(_named(cell, word) for word in wanted)]


def device_names() -> list[str]:
    """Return the names of five Raspberry Pi 2B and five 3B."""
    return [f"{kind}-{number}" for kind in CPUS for number in range(1, DEVICES // len(CPUS) + 1)]


def cpus_of(device: str) -> float:
    """Return the device's share of a processor."""
    return CPUS[device.rpartition("-")[0]]


def _named(cell: Cell, word: str) -> bool:
    return cell.name == word or cell.name.startswith(f"{word}-")
