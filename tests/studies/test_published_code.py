"""The study by the authors' published code, with a stand-in program of the same form."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpatch.shared.app.command import run_app
from studies import published_code
from tests.support.programs import Program

pytestmark = pytest.mark.benchmarks

ALGORITHMS = """
from progressbar import progressbar

first_steps, first_moments = [], []

def init_stats_arrays(rounds):
    raise NotImplementedError

def run(rounds, rate, adam):
    *_, accuracies = init_stats_arrays(rounds)
    first = adam.get_params()
    first_steps.append(first.params[0])
    for at in progressbar(range(rounds)):
        accuracies[at] = rate * at
        adam.train()
        average = adam.get_params()
        assert isinstance(average.params[0], float)
        adam.set_params(average)
    first_moments.append(float(first.params[1]))
"""
OPTIMISERS = """
import torch

class NumpyModel:
    def __init__(self, params):
        self.params = params

class ClientAdam:
    def __init__(self):
        self.state = {"weight": {"step": torch.tensor(0.0), "exp_avg": torch.tensor(0.0)}}

    def train(self):
        for one in self.state["weight"].values():
            one.add_(1)

    def get_params(self):
        return NumpyModel([self.state["weight"]["step"], self.state["weight"]["exp_avg"].numpy()])

    def set_params(self, average):
        self.state["weight"]["step"] = average.params[0]
"""
MODELS = """
class FLModel:
    values = 0

    def get_params(self):
        return self.values

    def set_params(self, values):
        self.values = values

    def set_optim(self, adam):
        self.values = 1
        adam.train()
"""
PROGRAM = """
from pathlib import Path
from sys import argv
import fl_algs
import models
import optimisers

words = []
initial = []

def save_data(data, name):
    raise NotImplementedError

def main():
    assert Path("../MNIST_data/labels").is_file()
    words.append(" ".join(argv[1:]))
    given = dict(zip(argv[1::2], argv[2::2]))
    model, adam = models.FLModel(), optimisers.ClientAdam()
    model.set_optim(adam)
    initial.append(model.get_params())
    fl_algs.run(int(given["-T"]), float(given["-lr"]), adam)
    save_data([], "result")
"""
MODULES = {"fl_algs": ALGORITHMS, "optimisers": OPTIMISERS, "models": MODELS, "main": PROGRAM}
FEDAVG = "table2/mnist/fedavg/affine/W200/C1.0"  # with rate 0.3 the target, 0.97, is reached after 4 rounds


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Iterator[Path]:
    """A repository with the stand-in program, and data beside it."""
    folder = tmp_path / "code"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "labels").write_text("")
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in (*MODULES, "progressbar"):
        sys.modules.pop(name, None)


@pytest.fixture
def play(checkout, tmp_path, monkeypatch, capsys) -> Callable[..., list[dict[str, Any]]]:
    """Run the benchmark; return the cells in its file."""
    program = Program(lambda: run_app(published_code.app, "published_code"), monkeypatch, capsys)

    def run(cells: str, rounds: int, *options: str) -> list[dict[str, Any]]:
        out = tmp_path / "published.json"
        ended = program("--code", checkout, "--cells", cells, "--rounds", rounds, "--out", out, *options)
        assert ended.code == 0, ended.err
        found: list[dict[str, Any]] = json.loads(out.read_text())["cells"]
        return found

    return run


def test_a_run_ends_at_the_target(play):
    here = Path.cwd()
    (cell,) = play(FEDAVG, 9)
    assert (cell["cell"], cell["rounds_to_target"], cell["curve"]) == (
        FEDAVG,
        4,
        pytest.approx([0.0, 0.3, 0.6, 0.9, 1.2]),
    )
    assert f"--cells {FEDAVG} --rounds 9" in cell["origin"]["command"]
    assert Path.cwd() == here


def test_a_run_that_ended_below_the_target_is_played_again_with_more_rounds_only(play):
    assert [(one["rounds_to_target"], len(one["curve"])) for one in play(FEDAVG, 2)] == [(None, 3)]
    play(FEDAVG, 2)
    assert len(sys.modules["main"].words) == 1
    assert [one["rounds_to_target"] for one in play(FEDAVG, 9)] == [4]
    play(FEDAVG, 20)
    assert len(sys.modules["main"].words) == 2


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (
            FEDAVG,
            "-alg fedavg -C 1.0 -B 20 -T 3 -E 1 -device cpu -W 200 -seed 0 -lr 0.3 -noisy_frac 0.0 -bn_private yb",
        ),
        (
            "table3/mnist/fedavg-adam/all/W400/C0.5",
            "-alg fedavg-adam -C 0.5 -B 20 -T 3 -E 1 -device cpu -W 400 -seed 0 -lr 0.003 -noisy_frac 0.2 -bn_private usyb "
            "-beta1 0.9 -beta2 0.999 -epsilon 1e-7",
        ),
        (
            "tuning/mnist/fedadam/stats/W200/C1.0/rate0.1-server0.03",
            "-alg fedadam -C 1.0 -B 20 -T 3 -E 1 -device cpu -W 200 -seed 0 -lr 0.1 -noisy_frac 0.0 -bn_private us "
            "-beta1 0.9 -beta2 0.999 -epsilon 1e-4 -server_lr 0.03",
        ),
    ],
)
def test_the_program_is_given_the_terms_of_the_cell(play, cell, expected):
    play(cell, 2)
    assert sys.modules["main"].words == [f"-dset mnist {expected}"]


def test_each_way_to_run_the_program_is_kept_beside_the_others(play, monkeypatch):
    monkeypatch.setattr(published_code, "name_processor", lambda device: {"cpu": "EPYC", "cuda": "H200"}[device])
    devices = []
    for options in ((), ("--copied",), ("--device", "cuda")):
        for name in MODULES:
            sys.modules.pop(name, None)  # each process adapts the program once
        kept = play(FEDAVG, 2, *options)
        devices += [words.split("-device ")[1].split()[0] for words in sys.modules["main"].words]
    assert [(one["device"], one["copied"], one["origin"]["processor"]) for one in kept] == [
        ("cpu", False, "EPYC"),
        ("cpu", True, "EPYC"),
        ("cuda", False, "H200"),
    ]
    assert devices == ["cpu", "cpu", "gpu"]


@pytest.mark.parametrize("options", [("--corrected",), ("--device", "cuda")])
def test_copies_beside_what_copies_anyway_are_refused(checkout, tmp_path, monkeypatch, capsys, options):
    program = Program(lambda: run_app(published_code.app, "published_code"), monkeypatch, capsys)
    ended = program("--code", checkout, "--cells", FEDAVG, "--out", tmp_path / "none.json", "--copied", *options)
    assert ended.code == 2
    assert "--copied" in ended.err


@pytest.mark.parametrize(
    ("options", "initial", "step", "moment"),
    [([], 1, 1.0, 4.0), (["--copied"], 1, 1.0, 1.0), (["--corrected"], 0, 0.0, 0.0)],
)
def test_copies_keep_the_first_moments_and_a_corrected_program_starts_at_zero(play, options, initial, step, moment):
    (cell,) = play(FEDAVG, 2, *options)
    assert (cell["corrected"], cell["copied"]) == ("--corrected" in options, "--copied" in options)
    algorithms = sys.modules["fl_algs"]
    assert sys.modules["main"].initial == [initial]
    assert (algorithms.first_steps, algorithms.first_moments) == ([step], [moment])


@pytest.mark.parametrize("cells", ["table2/cifar10/*", "aligned/mnist/*"])
def test_cells_without_a_published_program_are_refused(cells, checkout, monkeypatch, capsys):
    program = Program(lambda: run_app(published_code.app, "published_code"), monkeypatch, capsys)
    ended = program("--code", checkout, "--cells", cells, "--out", "none.json")
    assert ended.code == 2
    assert cells.partition("/")[0] in ended.err


def test_a_folder_that_is_no_checkout_is_refused(tmp_path, monkeypatch, capsys):
    program = Program(lambda: run_app(published_code.app, "published_code"), monkeypatch, capsys)
    ended = program("--code", tmp_path, "--cells", FEDAVG, "--out", tmp_path / "none.json")
    assert ended.code == 2
    assert f"{tmp_path}: no checkout of git" in ended.err
