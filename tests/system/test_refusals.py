"""Impossible commands are refused with one sentence that names cause and remedy, the right exit code, and no change."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedpatch.shared.tasks.bundled.mnist import TRAIN_IMAGES
from fedpatch.shared.tasks.torch_model import schema_of
from tests.support.brokers import Mosquitto, free_port
from tests.system import versions_task
from tests.system.commands import Command, Done, run
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FAILED, USAGE, BROKER = 1, 2, 3
DATA = "n=14,test=10,seed=1"
AGENT = ("fedpatch-agent", "run", "--data", DATA, "--task", REFERENCE)


@dataclass(frozen=True)
class Finished:
    """A run that has ended; only its broker still runs."""

    broker: Mosquitto
    state_dir: Path
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """A run of one round for all tests."""
    directory = tmp_path_factory.mktemp("finished")
    with Mosquitto() as broker:
        with Fleet(broker.url, directory) as fleet:
            fleet.start("ann", REFERENCE, DATA)
            options = ["--broker", broker.url, "--fleet", fleet.name, "--task", REFERENCE, "--rounds", 1, "--json"]
            options += ["--wait-s", 150, "--recruit-deadline-s", 100]
            done = run("fedpatch", "run", "--state-dir", directory / "coordinator", *options)
        assert done.code == 0, done.err
        yield Finished(broker, directory / "coordinator", done.document)


def _assert_refused(done: Done, code: int, *words: str, program: str = "fedpatch") -> None:
    """Check the exit code, all `words` on lines with the program's name, an empty stdout, and no traceback."""
    printed = "\n".join(line for line in done.err.splitlines() if line.startswith(f"{program}: "))
    assert (done.code, done.out) == (code, ""), done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in printed, f"{word!r} is missing in:\n{done.err}"


@pytest.mark.parametrize("command", ["run", "demo"])
@pytest.mark.parametrize(
    ("option", "wrong", "right"),
    [("--task", "digts", "digits"), ("--strategy", "fedavg-adm", "fedavg-adam"), ("--private", "afine", "affine")],
)
def test_unknown_name_is_refused_with_the_nearest(tmp_path: Path, command: str, option: str, wrong: str, right: str):
    kept = {"run": "--state-dir", "demo": "--out"}[command]
    done = run("fedpatch", command, option, wrong, kept, tmp_path / "kept")
    _assert_refused(done, USAGE, repr(wrong), f"did you mean {right!r}?", "known: ")
    assert not (tmp_path / "kept" / "coordinator").exists()
    assert not list(tmp_path.rglob("*.sqlite3"))


@pytest.mark.parametrize("program", ["fedpatch", "fedpatch-agent"])
def test_task_that_cannot_be_imported_is_refused_with_the_reason(tmp_path: Path, program: str):
    (tmp_path / "my_task.py").write_text("import no_such_module_anywhere\n")
    options = ["--data", "x"] if program == "fedpatch-agent" else []
    done = run(program, "run", "--task", "my_task:TASK", *options, cwd=tmp_path)
    _assert_refused(done, USAGE, "'my_task'", "No module named 'no_such_module_anywhere'", program=program)


@pytest.mark.broker
def test_device_with_another_version_of_the_task_declines_once(tmp_path: Path, mosquitto: Mosquitto):
    where = ["--broker", mosquitto.url, "--fleet", "demo"]
    module = "tests.system.versions_task"
    terms = ["--rounds", 5, "--max-failed-rounds", 5, "--wait-s", 5, "--state-dir", tmp_path / "coordinator", "--json"]
    with Fleet(mosquitto.url, tmp_path) as fleet:
        fleet.start("pi", f"{module}:OLD", DATA).wait_ready()
        done = run("fedpatch", "run", "--task", f"{module}:NEW", *where, *terms)
    assert (done.code, done.document["stopped_because"]) == (FAILED, "failed")
    (record,) = done.document["rounds"]
    assert (record["outcome"], record["failure"]) == ("failed", "too_few_accepted")
    assert record["decline_reasons"] == {"schema_mismatch": 1}
    digests = [schema_of(task.build_model()).digest for task in (versions_task.NEW, versions_task.OLD)]
    (line,) = [line for line in done.err.splitlines() if line.startswith("pi declined: schema_mismatch")]
    assert re.findall(r"[0-9a-f]{64}", line) == digests
    assert "install the same task version on both" in line
    assert "1 of those that are there cannot take part, as pi: " in done.err
    (pi,) = run("fedpatch", "devices", "--state-dir", tmp_path / "coordinator", "--json").document
    assert (pi["invited"], pi["declined"]) == (1, 1)


def test_damaged_data_file_is_refused_with_both_sums(tmp_path: Path):
    path = TRAIN_IMAGES.path(tmp_path)
    path.parent.mkdir()
    path.write_bytes(gzip.compress(bytes(10_000))[:-10])
    options = ["--task", "mnist", "--data", "shard:0/100", "--state-dir", tmp_path / "agent"]
    done = run("fedpatch-agent", "run", *options, environment={"FEDPATCH_DATA": str(tmp_path)})
    words = [str(path), TRAIN_IMAGES.sha256, "delete it to fetch it again"]
    _assert_refused(done, FAILED, *words, program="fedpatch-agent")
    assert len(re.findall(r"[0-9a-f]{64}", done.err)) == 2


def test_run_without_a_broker_is_refused_with_its_address(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    done = run("fedpatch", "run", "--broker", f"mqtt://{address}", "--state-dir", tmp_path / "state")
    _assert_refused(done, BROKER, address, "is a broker running there?")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("program", ["fedpatch", "fedpatch-agent"])
def test_all_problems_of_a_settings_file_are_named_with_their_lines(tmp_path: Path, program: str):
    wrong = 'broker = "tcp://somewhere"\nfleet = 7\n\nflet = "kitchen"\n'
    if program == "fedpatch-agent":
        wrong += 'data = "x"\n'
    file = tmp_path / "my.toml"
    file.write_text(wrong)
    done = run(program, "run", "--config", file)
    _assert_refused(done, USAGE, f"{file}:1: broker: ", f"{file}:2: fleet: ", f"{file}:4: flet: ", program=program)
    assert "did you mean fleet?" in done.err
    assert len(done.err.splitlines()) == 3


def test_second_agent_in_a_state_directory_is_refused(tmp_path: Path):
    options = [*AGENT[1:], "--state-dir", tmp_path / "agent", "--broker", f"mqtt://127.0.0.1:{free_port()}"]
    with Command("fedpatch-agent", *options) as first:
        first.wait((tmp_path / "agent" / "status.json").exists, "is at work")
        done = run("fedpatch-agent", *options)
        _assert_refused(done, USAGE, "another agent is running", "--state-dir", program="fedpatch-agent")
        assert first.running


@pytest.mark.broker
@pytest.mark.parametrize("command", ["show", "resume"])
def test_unknown_run_is_refused_with_the_nearest(finished: Finished, command: str):
    run_id = finished.summary["run"]
    done = run("fedpatch", command, f"{run_id[:-1]}x", "--state-dir", finished.state_dir)
    _assert_refused(done, USAGE, "unknown run", f"did you mean {run_id!r}?")


@pytest.mark.broker
def test_resume_of_a_finished_run_changes_nothing(finished: Finished):
    model = Path(finished.summary["model"]).read_bytes()
    done = run("fedpatch", "resume", "last", "--state-dir", finished.state_dir, "--json")
    assert done.code == 0
    assert done.document == finished.summary
    shown = run("fedpatch", "show", "last", "--state-dir", finished.state_dir, "--json")
    assert shown.document == finished.summary
    assert Path(finished.summary["model"]).read_bytes() == model


@pytest.mark.broker
def test_wrong_password_is_refused_with_the_user(tmp_path: Path):
    with Mosquitto(passwords={"boss": "right"}) as broker:
        options = ["--broker", broker.url, "--username", "boss", "--state-dir", tmp_path / "state"]
        done = run("fedpatch", "run", *options, environment={"FEDPATCH_PASSWORD": "opensesame"})
    _assert_refused(done, BROKER, "refused user 'boss'")
    assert "opensesame" not in done.err
    assert not (tmp_path / "state").exists()
