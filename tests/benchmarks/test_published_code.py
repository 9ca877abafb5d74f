"""The benchmark of the authors' published code, with a program of the same form in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers.published_code import play
from fedpatch.simulator.paper.experiments import select_cells

ALGORITHMS = """
from progressbar import progressbar

def init_stats_arrays(rounds):
    raise NotImplementedError

def run(rounds, rate):
    *_, accuracies = init_stats_arrays(rounds)
    for at in progressbar(range(rounds)):
        accuracies[at] = rate * at
"""
OPTIMISERS = """
class NumpyModel:
    pass

class ClientAdam:
    def get_params(self): ...
    def set_params(self, params): ...
"""
PROGRAM = """
from argparse import ArgumentParser
from pathlib import Path
from sys import argv
import fl_algs

def save_data(data, name):
    Path(name).write_text("")

def main():
    parser = ArgumentParser()
    for name in ("dset", "alg", "C", "B", "E", "device", "W", "seed", "noisy_frac", "bn_private"):
        parser.add_argument(f"-{name}", required=True)
    parser.add_argument("-T", type=int)
    parser.add_argument("-lr", type=float)
    given = parser.parse_args(argv[1:])
    assert given.bn_private == "yb" and Path("../MNIST_data/labels").is_file()
    fl_algs.run(given.T, given.lr)
    save_data([], "result")
"""


@pytest.mark.parametrize(("rounds", "expected"), [(2, [0.0, 0.3, 0.6]), (9, [0.0, 0.3, 0.6, 0.9, 1.2])])
def test_the_published_program_ends_at_the_target_or_after_the_given_rounds(rounds, expected, tmp_path, monkeypatch):
    for name, text in {"fl_algs": ALGORITHMS, "optimisers": OPTIMISERS, "main": PROGRAM}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "labels").write_text("")
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("fl_algs", "optimisers", "main", "progressbar"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    here, words = Path.cwd(), list(sys.argv)
    (cell,) = select_cells("table2", "mnist/fedavg/affine/W200/C1.0")  # rate 0.3, target 0.97
    assert play(cell, 0, rounds) == pytest.approx(expected)
    assert (Path.cwd(), sys.argv) == (here, words)
    for name in ("fl_algs", "optimisers", "main", "progressbar"):
        del sys.modules[name]
