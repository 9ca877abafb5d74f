"""Several processes give the results of one, end with their parent, and end the simulation if one dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.shared.errors import DataError, FedpatchError, UpdateRefused, UsageError
from fedpatch.simulator.experiment import checkpoint as states
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.learners.worker_pool import error_fields, raise_error
from fedpatch.simulator.spec.study import Point, Study
from tests.simulator.studies import SIZES, assert_close, study_of
from tests.support.paths import ROOT

STUDY = study_of("fedavg-adam", "affine", clients=6 * len(SIZES), participation=0.9, rounds=3)
"""Enough clients for many chunks, and for more than one part when they are measured."""


def computed(study: Study, folder: Path, workers: int) -> tuple[list[Point], states.Saved]:
    """Curve and last state of a study with `workers` processes."""
    outcome = simulate(study, workers=workers, saved=folder)
    state = states.load(folder, study)
    assert state is not None
    return [replace(one, seconds=0.0) for one in outcome.points], state


@pytest.mark.medium
@pytest.mark.parametrize(
    "study",
    [
        replace(STUDY, encoding="delta-int8"),
        pytest.param(study_of("fedavg-adam", "affine", norm_bound="auto:0.8", rounds=3), marks=pytest.mark.slow),
    ],
    ids=["many clients, encoded", "bounded"],
)
def test_number_of_workers_changes_no_bit(tmp_path, study):
    points, state = computed(study, tmp_path / "1", 1)
    found_points, found = computed(study, tmp_path / "3", 3)
    assert found_points == points
    assert_close(found.server.tensors, state.server.tensors, 0)
    assert_close(found.patches, state.patches, 0)
    assert found.batches == state.batches


@pytest.mark.slow
def test_script_without_a_guard_of_its_main_module_is_not_run_again_by_workers(tmp_path):
    (script := tmp_path / "script.py").write_text(
        "import fedpatch\nprint('begun')\nfedpatch.simulate('digits', clients=2, rounds=1, workers=2)\nprint('done')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("begun\ndone\n", 0), done.stderr


@pytest.mark.medium
def test_killed_worker_ends_the_simulation():
    def kill_one(point: Point) -> None:
        if point.round == 1:
            multiprocessing.active_children()[0].kill()

    with pytest.raises(FedpatchError, match=r"a worker process ended with exit code -9.*fewer --workers"):
        simulate(replace(STUDY, rounds=10_000), workers=2, on_point=kill_one)
    assert multiprocessing.active_children() == []


@pytest.mark.medium
def test_error_in_a_worker_is_that_of_one_process():
    study = study_of(data="{seed}/{index};hollow-2", participation=1.0)
    with pytest.raises(FedpatchError) as alone:
        simulate(study)
    with pytest.raises(FedpatchError) as among_two:
        simulate(study, workers=2)
    assert type(among_two.value) is type(alone.value)
    assert (str(among_two.value), vars(among_two.value)) == (str(alone.value), vars(alone.value))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "error", [DataError("absent"), UsageError("no such"), UpdateRefused("not_finite", "diverged")], ids=repr
)
def test_own_errors_come_whole_from_another_process(error):
    with pytest.raises(type(error)) as raised:
        raise_error(*error_fields(error))
    assert (str(raised.value), vars(raised.value)) == (str(error), vars(error))


def test_foreign_error_in_a_worker_names_its_type():
    with pytest.raises(FedpatchError, match="a worker process failed: KeyError: 'no such column'"):
        raise_error(*error_fields(KeyError("no such column")))


_PARENT = """
import multiprocessing, os, signal, sys, time
from dataclasses import replace
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.learners.worker_pool import Workers
from tests.simulator.studies import study_of

if __name__ == "__main__":
    def on_point(point):
        print(*(one.pid for one in multiprocessing.active_children()), flush=True)
    clients = int(sys.argv[1])
    if clients > 1000:  # die when all is handed out and nothing is taken back
        def die(self):
            on_point(None)
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        Workers._next = die
    study = study_of("fedavg", "none", clients=clients, participation=1.0, rounds=100_000)
    simulate(study, workers=2, on_point=on_point)
"""


@pytest.mark.medium
@pytest.mark.parametrize("clients", [21, pytest.param(10_000, marks=pytest.mark.faults)])
def test_workers_end_when_their_parent_is_killed(tmp_path, clients):
    """Workers end soon after their parent, even if more results wait than a pipe can hold."""
    program = tmp_path / "parent.py"
    program.write_text(_PARENT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(program), str(clients)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        if clients < 1000:
            parent.kill()
        parent.wait()
    try:
        assert len(workers) == 2
        give_up_at = time.monotonic() + 200
        while any(_exists(pid) for pid in workers):
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return False
