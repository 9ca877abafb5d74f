"""The command line `fedpatch-agent`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.bus.device_state import read_state as bus_state
from fedpatch.device_agent.cli.status import look_for_owner, standing_in_words
from fedpatch.device_agent.state.model_cache import Held, ModelCache
from fedpatch.device_agent.state.patch_store import PatchKey, PatchRecord, PatchState, PatchStore
from fedpatch.device_agent.state.status_file import StatusFile, lock_state_dir, read_standing
from fedpatch.shared.errors import StateError
from tests.support.examples import examples
from tests.support.programs import Ended

TRAINING = {
    "state": "training",
    "connected": True,
    "run": "a-run",
    "round": 3,
    "tasks": [{"task": "digits", "schema": "0" * 64, "num_examples": 144}],
    "last_outcome": "committed",
}


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return _filled(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _filled(tmp_path_factory.mktemp("state"))


def _filled(tmp_path: Path) -> Path:
    lock_state_dir(tmp_path).release()
    fixed = {"device_id": "pi-1", "fleet": "kitchen", "broker": "mqtt://broker:1883", "version": "1"}
    StatusFile(tmp_path, fixed).write(TRAINING)
    after = PatchState({"bn1.weight": np.ones(100, np.float32)}, 7)
    key = PatchKey("digits", "0" * 64, "affine")
    PatchStore(tmp_path / "patches").save(PatchRecord(key, "a-run", 2, PatchState(), after))
    return tmp_path


def test_status_shows_the_work_of_a_running_agent(agent, state_dir):
    with lock_state_dir(state_dir):
        out = agent("status", "--state-dir", state_dir).out
    assert "pi-1 of fleet kitchen is running" in out
    assert "connected to mqtt://broker:1883" in out
    assert "training, run a-run, round 3" in out
    assert "digits: 144 training examples" in out
    assert "private affine" in out and "round 2 of run a-run" in out


def test_status_shows_a_problem_while_the_agent_runs(agent, state_dir):
    fixed = {"device_id": "pi-1", "fleet": "kitchen", "broker": "mqtt://broker:1883", "version": "1"}
    StatusFile(state_dir, fixed).write({**TRAINING, "problem": "another agent uses the device id 'pi-1'"})
    with lock_state_dir(state_dir):
        assert "problem: another agent uses the device id 'pi-1'\n" in agent("status", "--state-dir", state_dir).out
        printed = json.loads(agent("status", "--state-dir", state_dir, "--json").out)
    assert printed["problem"] == "another agent uses the device id 'pi-1'"
    assert "problem:" not in agent("status", "--state-dir", state_dir).out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"declines": "patches/digits.private: is damaged"}, "it would not accept work now: every request is declined"),
        ({"state": "starting", "tasks": []}, "it would not accept work now: its task is still being loaded"),
        ({}, "it would accept work now"),
    ],
)
def test_status_reports_accepting_work_only_when_ready(agent, state_dir, changes, words):
    fixed = {"device_id": "pi-1", "fleet": "kitchen", "broker": "b", "version": "1", "admission": "always"}
    StatusFile(state_dir, fixed).write({**TRAINING, **changes})
    with lock_state_dir(state_dir):
        out = agent("status", "--state-dir", state_dir).out
    assert words in out
    assert ("it would accept work now" in out) is (not changes)


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_status_of_an_agent_that_does_not_run_ends_with_1(agent, state_dir, options):
    """The agent's lock is free, so its last status does not matter; it is printed nevertheless."""
    ended = agent("status", "--state-dir", state_dir, *options)
    assert ended.code == 1
    assert '"running": false' in ended.out if options else "pi-1 of fleet kitchen is not running" in ended.out
    assert "it is training" not in ended.out
    with lock_state_dir(state_dir):
        assert agent("status", "--state-dir", state_dir, *options).code == 0


@pytest.mark.parametrize("again", [False, True])
def test_status_of_an_agent_whose_state_directory_was_deleted_says_so(agent, state_dir, again):
    with lock_state_dir(state_dir):
        shutil.rmtree(state_dir)
        if again:
            state_dir.mkdir(mode=0o700)
        ended = agent("status", "--state-dir", state_dir)
    assert (ended.code, ended.out) == (1, "")
    assert "was deleted or replaced since; it declines every round; restore the directory" in ended.err


def test_status_for_programs(agent, state_dir):
    (state_dir / "spool").mkdir()
    (state_dir / "spool" / "offer.msgpack").write_bytes(b"")
    with lock_state_dir(state_dir):
        printed = json.loads(agent("status", "--state-dir", state_dir, "--json").out)
    assert (printed["running"], printed["state"], printed["round"], printed["update_waits"]) == (
        True,
        "training",
        3,
        True,
    )
    assert [one["policy"] for one in printed["patches"]] == ["affine"]


def test_status_shows_the_digest_of_the_held_global_model(agent, state_dir):
    none = json.loads(agent("status", "--state-dir", state_dir, "--json").out)
    assert none["held_version"] is None
    ModelCache(state_dir / "held").write(Held("ab" * 32, "5c" * 32, "fp32", 4), b"blob")
    printed = json.loads(agent("status", "--state-dir", state_dir, "--json").out)
    assert printed["held_version"] == "ab" * 32
    assert "global model: version abababababab is held" in agent("status", "--state-dir", state_dir).out


def test_asking_does_not_keep_an_agent_from_starting(agent, state_dir):
    agent("status", "--state-dir", state_dir)
    lock_state_dir(state_dir).release()


def test_an_agent_that_has_not_written_yet_is_starting(agent, tmp_path):
    with lock_state_dir(tmp_path):
        ended = agent("status", "--state-dir", tmp_path)
    assert ended.code == 0
    assert "is starting" in ended.out


def test_patches_are_listed_without_their_values(agent, state_dir):
    (state_dir / "patches" / "broken.patch").write_bytes(b"?")
    listed = json.loads(agent("patches", "--state-dir", state_dir, "--json").out)
    assert [bool(one["problem"]) for one in listed] == [True, False]
    assert (listed[1]["task"], listed[1]["run"], listed[1]["round"]) == ("digits", "a-run", 2)
    lines = agent("patches", "--state-dir", state_dir).out.splitlines()
    assert "broken.patch" in lines[0] and "digits" in lines[1]


def test_patches_reports_a_device_without_patches(agent, tmp_path):
    lock_state_dir(tmp_path).release()
    assert agent("patches", "--state-dir", tmp_path) == Ended(0, f"no patches yet in {tmp_path}\n", "")
    assert agent("patches", "--state-dir", tmp_path, "--json").out == "[]\n"


@pytest.mark.parametrize("command", ["status", "patches"])
def test_a_directory_without_an_agent_is_a_usage_error(agent, tmp_path, command):
    ended = agent(command, "--state-dir", tmp_path / "none")
    assert (ended.code, ended.out) == (2, "")
    assert "--state-dir" in ended.err and str(tmp_path / "none") in ended.err
    assert not (tmp_path / "none").exists()


def test_damaged_status_file_is_an_error(agent, state_dir):
    (state_dir / "status.json").write_bytes(b"{")
    ended = agent("status", "--state-dir", state_dir)
    assert ended.code == 1
    assert "status.json: is damaged" in ended.err


WRONG = st.one_of(st.none(), st.just("x"), st.just(-1), st.just([None]), st.just({"task": 1}), st.just(float("nan")))


@examples(60)
@given(key=st.sampled_from(sorted({*TRAINING, "since", "private", "privacy", "device_id", "unwilling"})), value=WRONG)
def test_status_with_a_value_of_a_wrong_type_is_read_or_an_error_that_names_the_file(whole, key, value):
    path = whole / "status.json"
    sound = path.read_bytes()
    path.write_text(json.dumps({**json.loads(sound), key: value}))
    try:
        with lock_state_dir(whole):
            try:
                standing = read_standing(whole)
                standing_in_words(standing, look_for_owner(whole, standing), 1.0)
                bus_state(whole)
            except StateError as error:
                assert str(error).startswith(f"{path}: is not what an agent wrote")
    finally:
        path.write_bytes(sound)


def test_patches_are_listed_beside_a_damaged_status_file(agent, state_dir):
    sound = agent("patches", "--state-dir", state_dir, "--json")
    (state_dir / "status.json").write_bytes(b"{")
    assert agent("patches", "--state-dir", state_dir, "--json") == sound
    assert len(json.loads(sound.out)) == 1


def test_the_state_directory_may_come_from_the_environment(agent, state_dir, monkeypatch):
    monkeypatch.setenv("FEDPATCH_AGENT_STATE_DIR", str(state_dir))
    assert json.loads(agent("status", "--json").out)["device_id"] == "pi-1"


def test_agent_reports_all_wrong_settings_together(agent):
    ended = agent("run", "--threads", "none", "--broker", "no where", "--task", "digts")
    assert (ended.code, ended.out) == (2, "")
    complaints = [line.removeprefix("fedpatch-agent: ").partition(":")[0] for line in ended.err.splitlines()]
    assert sorted(complaints) == ["--broker", "--task", "--threads", "data"]


@pytest.mark.medium
def test_agent_ends_when_its_stdin_closes(tmp_path):
    """No agent outlives the demo that started it."""
    options = ["--broker", "mqtt://127.0.0.1:9", "--data", "shard:0/10", "--state-dir", str(tmp_path / "agent")]
    command = [sys.executable, "-m", "fedpatch.device_agent", "run", "--until-stdin-closes", *options]
    result = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == b""


def test_a_ca_file_is_used_for_the_broker(agent, tmp_path):
    ca_file = tmp_path / "ca.pem"
    options = ("--broker", "mqtts://broker.local", "--data", "shard:0/10", "--state-dir", tmp_path)
    ended = agent("run", "--ca-file", ca_file, *options)
    assert (ended.code, ended.out) == (2, "")
    assert f"{ca_file}: not a file of CA certificates" in ended.err
