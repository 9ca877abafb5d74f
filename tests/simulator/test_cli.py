"""The command line `fedpatch simulate`."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.cli.tables import print_table
from fedpatch.shared.errors import DataError, FedpatchError
from fedpatch.simulator.cli import _table
from fedpatch.simulator.experiment.progress import ProgressLines
from fedpatch.simulator.spec.study import AttackOutcome, Outcome, Point, Study
from tests.shared.prepared_task import rows
from tests.support.programs import Ended

AS_WRITTEN = (
    "simulate --task mnist --clients 200 --participation 0.5 --strategy fedavg-adam --private affine "
    "--target-ua 0.97 --rounds 500 --seed 0 --json"
)
SMALL = tuple(shlex.split("simulate --task digits --clients 4 --strategy fedavg --rounds 3 --target-ua 0.8"))

FILES = {"curve.csv", "curve.svg", "outcome.json"}


class Engine:
    """Replaces `fedpatch.simulator.experiment.simulation.simulate`: user accuracy rises by 0.1 each round, up to `best`.

    As in the real one, the first `known` points are those of an earlier process.
    """

    def __init__(self) -> None:
        self.best = 1.0
        self.known = 0
        self.train_loss: float | None = 0.5
        self.calls: list[dict[str, Any]] = []
        self.before_round: Callable[[int], None] = lambda number: None

    def __call__(self, study: Study, **given: Any) -> Outcome:
        """Run the rounds, and check before each whether to stop."""
        self.calls.append({"study": study, **given})
        points: list[Point] = []
        complete = True
        for number in range(study.rounds + 1):
            self.before_round(number)
            if number >= self.known and given["stopped"]():
                complete = False
                break
            ua = min(self.best, 0.65 + 0.1 * number)
            points.append(Point(number, ua, ua - 0.1, ua - 0.2, 4, self.train_loss if number else None, 0.25))
            given["on_point"](points[-1])
            if study.target_ua is not None and ua >= study.target_ua:
                break
        return Outcome(study, tuple(points), complete, {"fedpatch": "1"})


@pytest.fixture
def engine(monkeypatch) -> Engine:
    """An engine in place of the real one."""
    stand_in, module = Engine(), ModuleType("fedpatch.simulator.experiment.simulation")
    module.__dict__["simulate"] = stand_in
    monkeypatch.setitem(sys.modules, "fedpatch.simulator.experiment.simulation", module)
    return stand_in


def test_options_are_the_terms_of_the_study(fedpatch, engine):
    assert fedpatch(*shlex.split(AS_WRITTEN)).code == 0
    assert engine.calls[0]["study"] == Study(
        task="mnist",
        clients=200,
        strategy="fedavg-adam",
        private="affine",
        data="shard:{index}/{count},seed={seed}",
        participation=0.5,
        rounds=500,
        target_ua=0.97,
        seed=0,
        learning_rate=0.003,
        batch_size=20,
    )


@pytest.mark.medium
def test_every_term_of_a_study_has_an_option(fedpatch, engine):
    options = (
        "--strategy per-fedavg --learning-rate 0.2 --adaptation-rate 0.1 --batch-size 10 --steps 7 --data mine:{index} "
        "--workers 3 --device cuda"
    )
    assert fedpatch("simulate", *shlex.split(options)).code == 0
    call = engine.calls[0]
    study = call["study"]
    assert (study.strategy, study.learning_rate, study.adaptation_rate) == ("per-fedavg", 0.2, 0.1)
    assert (study.batch_size, study.steps, study.data) == (10, 7, "mine:{index}")
    assert (call["workers"], call["device"], call["saved"]) == (3, "cuda", None)


def test_json_prints_the_outcome_on_one_line(fedpatch, engine):
    ended = fedpatch(*SMALL, "--json")
    printed = json.loads(ended.out)
    assert ended.out.count("\n") == 1
    assert printed["rounds_to_target"] == 2
    assert printed["user_accuracy"] == pytest.approx(0.85)
    assert printed["curve"] == pytest.approx([0.65, 0.75, 0.85])
    assert printed["seconds"] == 0.75
    assert printed["study"]["clients"] == 4
    assert printed["versions"] == {"fedpatch": "1"}
    assert printed["complete"] is True


def test_without_json_a_short_table_is_printed(fedpatch, engine):
    out = fedpatch(*SMALL).out
    assert re.search(r"^study +digits, fedavg, private affine, 4 clients, seed 0$", out, re.MULTILINE)
    assert re.search(r"^rounds to UA 0\.800 +2$", out, re.MULTILINE)
    assert re.search(r"^user accuracy +0\.850 after 2 rounds$", out, re.MULTILINE)
    assert re.search(r"^10th percentile +0\.750$", out, re.MULTILINE)
    assert re.search(r"^lowest +0\.650$", out, re.MULTILINE)
    assert re.search(r"^time +0\.8 s, 0\.25 s a round$", out, re.MULTILINE)


def test_table_of_an_attacked_study_names_the_attack_and_its_success(capsys):
    study = Study("digits", 10, "fedavg", "affine", "", 1.0, 1, None, 0, 0.1, 20, attack="backdoor", bad=0.2)
    outcome = Outcome(study, (Point(0, 0.5, 0.4, 0.3, 8, None, 0.1),), True, {}, AttackOutcome((1, 2), 0.5, 0.25))
    print_table(_table(outcome))
    words = " ".join(capsys.readouterr().out.split())
    assert "attack backdoor by 2 of 10 clients, backdoor success 25%, 50% of them among those pulled most" in words


def test_target_not_reached_exits_with_0(fedpatch, engine):
    engine.best = 0.7
    ended = fedpatch(*SMALL)
    assert ended.code == 0
    assert re.search(r"^rounds to UA 0\.800 +not reached in 3 rounds$", ended.out, re.MULTILINE)
    assert json.loads(fedpatch(*SMALL, "--json").out)["rounds_to_target"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_study_prints_its_curve_and_how_to_resume(fedpatch, engine, tmp_path, number):
    engine.before_round = lambda round_number: os.kill(os.getpid(), number) if round_number == 1 else None
    ended = fedpatch(*SMALL, "--json", "--out", tmp_path / "study")
    assert ended.code == 130
    assert (len(json.loads(ended.out)["curve"]), json.loads(ended.out)["complete"]) == (1, False)
    assert f"the same command again: it takes up what is in {tmp_path / 'study'}" in ended.err
    assert fedpatch(*SMALL).err.endswith("nothing is kept to go on from; --out DIR keeps it\n")


def test_second_ctrl_c_ends_the_study_at_once(fedpatch, engine, tmp_path):
    def twice(_: int) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    engine.before_round = twice
    ended = fedpatch(*SMALL, "--json", "--out", tmp_path)
    assert (ended.code, ended.out) == (130, "")
    assert "the same command again" in ended.err


@pytest.mark.medium
def test_interrupted_study_resumes_with_the_same_command(fedpatch, engine, tmp_path):
    engine.before_round = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 2 else None
    assert fedpatch(*SMALL, "--out", tmp_path).code == 130
    engine.before_round, engine.known = lambda number: None, 2
    ended = fedpatch(*SMALL, "--out", tmp_path)
    assert (ended.code, ended.err) == (0, "goes on after round 1\n")
    assert [call["saved"] for call in engine.calls] == [tmp_path / ".unfinished"] * 2


def test_out_holds_outcome_curve_and_pictures(fedpatch, engine, tmp_path):
    out = tmp_path / "made" / "study"
    ended = fedpatch(*SMALL, "--json", "--out", out)
    assert {path.name for path in out.iterdir()} == FILES
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o644}
    assert (out / "outcome.json").read_text() == ended.out
    rows = list(csv.DictReader((out / "curve.csv").read_text().splitlines()))
    assert [(row["round"], row["train_loss"]) for row in rows] == [("0", ""), ("1", "0.5"), ("2", "0.5")]
    assert float(rows[2]["user_accuracy"]) == pytest.approx(0.85)


def test_finished_study_is_not_computed_again(fedpatch, engine, tmp_path):
    first = fedpatch(*SMALL, "--json", "--out", tmp_path)
    again = fedpatch(*SMALL, "--json", "--out", tmp_path)
    assert (again.code, again.out) == (0, first.out)
    assert again.err == f"{tmp_path} holds the outcome of this study already; choose another --out to compute it anew\n"
    assert len(engine.calls) == 1


def test_folder_of_another_study_is_refused(fedpatch, engine, tmp_path):
    fedpatch(*SMALL, "--out", tmp_path)
    ended = fedpatch(*SMALL, "--seed", 7, "--out", tmp_path)
    assert (ended.code, ended.out, len(engine.calls)) == (2, "", 1)
    assert f"{tmp_path} holds another study (seed 0, not 7); choose another --out" in ended.err


@pytest.mark.parametrize(
    ("name", "content"), [("outcome.json", "[1]"), ("outcome.json", "{"), ("outcome.json", "{}"), ("curve.svg", "x")]
)
def test_folder_with_foreign_files_is_refused(fedpatch, engine, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    ended = fedpatch(*SMALL, "--out", tmp_path)
    assert (ended.code, len(engine.calls)) == (2, 0)
    assert f"{tmp_path / name}" in ended.err and "choose another --out" in ended.err
    assert (tmp_path / name).read_text() == content


def test_loss_that_is_nan_is_null(fedpatch, engine, tmp_path):
    engine.train_loss = float("nan")
    printed = json.loads(fedpatch(*SMALL, "--json", "--out", tmp_path).out)
    assert [point["train_loss"] for point in printed["points"]] == [None] * 3


def test_default_patch_is_affine_and_none_for_baselines(fedpatch, engine):
    fedpatch("simulate", "--strategy", "fedadam")
    fedpatch("simulate", "--strategy", "independent")
    assert [call["study"].private for call in engine.calls] == ["affine", "none"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--clients", "0", "--rounds", "0"), "--rounds: 0"),
        (("--workers", "0"), "--workers: 0"),
        (("--device", "gpu"), "did you mean 'cpu'"),
        (("--task", "didgits"), "did you mean 'digits'"),
        (("--private", "names:*"), "use --strategy independent"),
        (("--seed", "7", "compare"), "--seed stands before 'compare'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_computed(fedpatch, engine, argv, words):
    ended = fedpatch("simulate", *argv)
    assert (ended.code, ended.out, engine.calls) == (2, "", [])
    assert words in ended.err


def test_options_of_logs_before_a_subcommand_apply_to_it(fedpatch):
    ended = fedpatch("simulate", "--debug", "--log-format", "logfmt", "compare", "--task", "didgits")
    assert ended.code == 2
    assert "level=debug logger=fedpatch.command message=UsageError trace=" in ended.err


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (DataError("no data"), "no data"),
        (FedpatchError("no"), "no"),
        (
            RuntimeError("expected Float but got Double"),
            "task 'digits' failed in the simulation: RuntimeError: expected Float but got Double; "
            "--debug, or __cause__ in Python, shows where",
        ),
    ],
)
def test_error_in_the_simulation_is_one_sentence_and_with_debug_a_traceback(fedpatch, engine, error, problem):
    def fail(_: int) -> None:
        raise error

    engine.before_round = fail
    assert fedpatch(*SMALL) == Ended(1, "", f"fedpatch: {problem}\n")
    in_full = fedpatch(*SMALL, "--debug").err
    assert "Traceback" in in_full and problem in in_full


def test_commands_of_simulate_load_no_heavy_library():
    program = (
        "import sys, fedpatch.simulator.cli;"
        "print(*sorted({'matplotlib', 'numpy', 'paho', 'sklearn', 'torch'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


FILE_TASK = """
from dataclasses import replace

import numpy as np

from fedpatch.shared.tasks.task import DeviceData
from tests.shared.prepared_task import PLAIN, rows


def load_data(spec, root):
    x = np.load(root / f"{spec}.npy")
    return DeviceData(x[:20], rows(20)[1], x[20:], rows(30)[1][20:])


TASK = replace(PLAIN, load_data=load_data, demo_data="", name="files")
"""


def test_data_root_names_the_folder_of_the_data(fedpatch, tmp_path, monkeypatch):
    (tmp_path / "file_task.py").write_text(FILE_TASK)
    (tmp_path / "data").mkdir()
    for client in range(2):
        np.save(tmp_path / "data" / f"machine-{client}.npy", rows(30, seed=client)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path / "elsewhere"))
    options = ["simulate", "--task", "file_task:TASK", "--data", "machine-{index}", "--clients", 2, "--rounds", 1]
    ended = fedpatch(*options, "--strategy", "fedavg", "--workers", 1, "--data-root", "data", "--json")
    assert ended.code == 0, ended.err
    assert len(json.loads(ended.out.splitlines()[-1])["points"]) == 2
    missing = fedpatch(*options, "--strategy", "fedavg", "--workers", 1)
    assert missing.code == 1
    assert f"in the folder {tmp_path / 'elsewhere'}, which --data-root or FEDPATCH_DATA can name" in missing.err


@pytest.mark.medium
def test_study_of_digits_is_the_same_with_two_workers(fedpatch, tmp_path):
    argv = ("simulate", "--clients", "4", "--rounds", "2", "--json")
    first = json.loads(fedpatch(*argv, "--workers", "1", "--out", tmp_path / "study").out)
    again = json.loads(fedpatch(*argv, "--workers", "2").out)
    assert first["curve"] == again["curve"]
    assert len(first["curve"]) == 3 and first["curve"][2] > first["curve"][0]
    assert {path.name for path in (tmp_path / "study").iterdir()} == FILES


@pytest.mark.medium
def test_interrupted_study_of_digits_ends_with_the_same_curve(fedpatch, tmp_path, monkeypatch):
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
    """With no private tensors, twice as many rounds do not reach the same target on the demo's devices."""

    def rounds_to_target(private: str, rounds: int) -> int | None:
        argv = (
            "simulate",
            *shlex.split("--clients 10 --workers 1 --target-ua 0.97 --private"),
            private,
            "--rounds",
            rounds,
        )
        found: int | None = json.loads(fedpatch(*argv, "--json").out)["rounds_to_target"]
        return found

    with_patches = rounds_to_target("affine", 30)
    assert with_patches is not None
    assert rounds_to_target("none", 2 * with_patches) is None
