"""`fedpatch simulate` with the real simulator, on digits."""

from __future__ import annotations

import json
import os
import signal

import pytest

from fedpatch.simulator.experiment.progress import ProgressLines
from fedpatch.simulator.spec.study import Point


@pytest.mark.slow
def test_a_study_of_digits_is_computed_and_is_the_same_again(fedpatch, tmp_path):
    """Two rounds with four clients; processes change nothing but the time."""
    argv = ("simulate", "--clients", "4", "--rounds", "2", "--json")
    first = json.loads(fedpatch(*argv, "--workers", "1", "--out", tmp_path / "study").out)
    again = json.loads(fedpatch(*argv, "--workers", "2").out)
    assert first["curve"] == again["curve"]
    assert len(first["curve"]) == 3 and first["curve"][2] > first["curve"][0]
    assert sorted(path.name for path in (tmp_path / "study").iterdir()) == [
        "curve.csv",
        "curve.png",
        "curve.svg",
        "outcome.json",
    ]


def test_an_interrupted_study_of_digits_goes_on_to_the_same_end(fedpatch, tmp_path, monkeypatch):
    """The curve is that of a study nobody interrupted, and no state is left."""
    argv = ("simulate", "--clients", "4", "--rounds", "4", "--workers", "1", "--json")
    whole = json.loads(fedpatch(*argv).out)
    with monkeypatch.context() as patch:

        def interrupt(_: ProgressLines, point: Point) -> None:
            if point.round == 2:
                os.kill(os.getpid(), signal.SIGINT)

        patch.setattr(ProgressLines, "show", interrupt)
        begun = fedpatch(*argv, "--out", tmp_path)
    assert (begun.code, json.loads(begun.out)["curve"]) == (130, whole["curve"][:3])
    gone_on = fedpatch(*argv, "--out", tmp_path)
    assert (gone_on.code, gone_on.err) == (0, "goes on after round 2\n")
    assert json.loads(gone_on.out)["curve"] == whole["curve"]
    assert not list(tmp_path.glob(".unfinished/*"))


def test_patches_save_half_of_the_rounds(fedpatch):
    """With nothing private, twice as many rounds are not enough to make the models of a demo's devices as good."""

    def rounds_to_target(private: str, rounds: int) -> int | None:
        argv = (
            "simulate",
            "--clients",
            10,
            "--workers",
            1,
            "--target-ua",
            0.97,
            "--private",
            private,
            "--rounds",
            rounds,
        )
        found: int | None = json.loads(fedpatch(*argv, "--json").out)["rounds_to_target"]
        return found

    with_patches = rounds_to_target("affine", 30)
    assert with_patches is not None
    assert rounds_to_target("none", 2 * with_patches) is None
