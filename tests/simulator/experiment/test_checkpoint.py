"""An interrupted or killed simulation resumes, and gives the outcome of an uninterrupted one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import StateError, UsageError
from fedpatch.simulator.experiment import checkpoint as states
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import Point, Study
from tests.simulator.studies import assert_close, play_on, simulation_of, study_of, without_seconds
from tests.support.paths import ROOT

ROUNDS = 4


@pytest.mark.matrix
@pytest.mark.parametrize(
    "study",
    [
        study_of("fedavg", "affine", rounds=ROUNDS),
        study_of("fedadam", "stats", rounds=ROUNDS),
        study_of("fedavg-adam", "all", rounds=ROUNDS),
        study_of("independent", rounds=ROUNDS),
        study_of("fedavg-adam", "affine", participation=0.3, norm_bound="auto:0.8", rounds=ROUNDS),
        *(study_of("fedavg-adam", "affine", rounds=ROUNDS, encoding=e) for e in ("delta-int8", "delta-bf16", "fp16")),
    ],
    ids=["fedavg", "fedadam", "fedavg-adam", "independent", "bounded", "delta-int8", "delta-bf16", "fp16"],
)
def test_study_interrupted_after_every_round_ends_as_one_left_alone(tmp_path, study):
    for points in range(ROUNDS + 1):
        outcome = play_on(study, tmp_path / "stopped", points)
        assert (len(outcome.points), outcome.complete) == (points, False)
    outcome = simulate(study, saved=tmp_path / "stopped")
    assert without_seconds(outcome) == without_seconds(simulate(study, saved=tmp_path / "alone"))
    found, expected = (states.load(tmp_path / name, study) for name in ("stopped", "alone"))
    assert found is not None
    assert expected is not None
    assert_close(found.server.tensors, expected.server.tensors, 0)
    assert_close(found.server.server, expected.server.server, 0)
    assert_close(found.patches, expected.patches, 0)
    assert found.batches == expected.batches


def test_resumed_simulation_reports_all_points_from_the_first(tmp_path):
    study, reported = study_of(rounds=ROUNDS), list[Point]()
    play_on(study, tmp_path, 3)
    outcome = simulate(study, saved=tmp_path, on_point=reported.append)
    assert reported == list(outcome.points)


def test_finished_simulation_returns_its_outcome_again(tmp_path):
    study = study_of(rounds=ROUNDS)
    first = simulate(study, saved=tmp_path)
    again = simulate(study, saved=tmp_path, stopped=lambda: True)
    assert (again.points, again.complete) == (first.points, True)


@pytest.mark.slow
def test_study_resumed_by_two_workers_ends_as_with_one(tmp_path):
    study = study_of("fedavg-adam", "affine", rounds=ROUNDS, clients=21)
    play_on(study, tmp_path, 2, workers=2)
    play_on(study, tmp_path, 4, workers=2)
    assert without_seconds(simulate(study, saved=tmp_path)) == without_seconds(simulate(study))


_KILLED = """
from pathlib import Path
import sys
import fedpatch.simulator.experiment.simulation
from tests.simulator.studies import study_of
fedpatch.simulator.experiment.simulation.SAVE_EVERY_S = 0.0
fedpatch.simulator.experiment.simulation.simulate(study_of("fedavg-adam", "affine", rounds=100_000), saved=Path(sys.argv[1]))
"""


@pytest.mark.medium
@pytest.mark.parametrize("moment_s", [0.0, *(pytest.param(s, marks=pytest.mark.faults) for s in (0.137, 0.511))])
def test_killed_simulation_resumes_from_its_last_state(tmp_path, moment_s):
    process = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], cwd=ROOT)
    try:
        give_up_at = time.monotonic() + 200
        while not (tmp_path / states.STATE_FILE).exists():
            assert process.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        time.sleep(moment_s)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    study = study_of("fedavg-adam", "affine", rounds=100_000)
    found = states.load(tmp_path, study)
    assert found is not None
    reached = found.server.round + 2
    outcome = play_on(study, tmp_path, reached + 1)
    alone: list[Point] = []
    expected = simulate(study, on_point=alone.append, stopped=lambda: len(alone) >= reached + 1)
    assert without_seconds(outcome)[1] == without_seconds(expected)[1]
    assert os.listdir(tmp_path) == [states.STATE_FILE]


def test_folder_of_another_study_is_refused(tmp_path):
    play_on(study_of(rounds=ROUNDS), tmp_path, 2)
    before = (tmp_path / states.STATE_FILE).read_bytes()
    with pytest.raises(UsageError, match=r"seed 3, not 4.*another folder"):
        simulate(study_of(rounds=ROUNDS, seed=4), saved=tmp_path)
    assert (tmp_path / states.STATE_FILE).read_bytes() == before


def state_file(folder: Path) -> tuple[Study, Path, bytes]:
    """Save one state of a simulation; return the study, the path and the bytes."""
    study = study_of("fedadam", "affine", rounds=ROUNDS)
    simulation = simulation_of(study)
    simulation.step(), simulation.step()
    states.save(folder, study, simulation.state())
    path = folder / states.STATE_FILE
    return study, path, path.read_bytes()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A study, its state's path and its bytes."""
    return state_file(tmp_path_factory.mktemp("state"))


@given(data=st.data())
def test_damaged_state_is_refused_or_read_as_written(written, data):
    study, path, whole = written
    damaged = bytearray(whole)
    if data.draw(st.booleans(), "cut off"):
        del damaged[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        place = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 2000, len(whole) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    expected = states.load(path.parent, study)
    path.write_bytes(damaged)
    with contextlib.suppress(UsageError):
        try:
            found = states.load(path.parent, study)
        except UsageError as error:
            assert str(path) in str(error)
            assert "delete it" in str(error) or "another" in str(error)
            raise
        assert found is not None
        assert expected is not None
        assert (found.points, found.batches) == (expected.points, expected.batches)
        assert_close(found.patches, expected.patches, 0)
        assert_close(found.server.tensors, expected.server.tensors, 0)


@pytest.mark.parametrize("content", [b"", b"no state at all", b"PK\x05\x06" + bytes(18)])
def test_file_that_is_no_state_is_refused(tmp_path, content):
    (tmp_path / states.STATE_FILE).write_bytes(content)
    with pytest.raises(UsageError, match=f"{states.STATE_FILE} cannot be read .*; delete it"):
        states.load(tmp_path, study_of())


def test_state_of_another_version_is_refused(tmp_path, monkeypatch):
    study = study_of(rounds=ROUNDS)
    to_dict = Study.to_dict
    monkeypatch.setattr(Study, "to_dict", lambda self: to_dict(self) | {"colour": "red"})
    play_on(study, tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(UsageError, match=f"{states.STATE_FILE}.*colour.*; delete it"):
        states.load(tmp_path, study)


def test_state_of_another_model_is_refused(tmp_path):
    study = study_of("fedadam", "affine", rounds=ROUNDS)
    simulation = simulation_of(study)
    simulation.step(), simulation.step()
    state = simulation.state()
    model = {name: np.zeros((2, 3)) for name in state.server.tensors}
    for other in (replace(state, server=replace(state.server, tensors=model)), replace(state, patches={})):
        states.save(tmp_path, study, other)
        with pytest.raises(UsageError, match=r"another version of the task.*delete"):
            simulate(study, saved=tmp_path)


def test_folder_that_is_a_file_is_refused(tmp_path):
    place = tmp_path / "occupied"
    place.write_text("a file")
    with pytest.raises(StateError, match="occupied"):
        simulate(study_of(rounds=1), saved=place)
