"""`fedpatch-relay`: exit codes, and the status of a relay."""

from __future__ import annotations

import json

import pytest

from fedpatch.device_agent.state.status_file import lock_state_dir
from tests.support.brokers import free_port
from tests.system.commands import run

UP = ("--up", "mqtts://hub.example", "--device-id", "site-7", "--fleet", "site-7")


@pytest.mark.medium
def test_status_without_a_relay_exits_1_with_a_document_and_2_where_none_ever_ran(tmp_path):
    done = run("fedpatch-relay", "status", "--state-dir", tmp_path)
    assert (done.code, "no relay has run in" in done.err) == (2, True)
    with lock_state_dir(tmp_path / "device"):
        pass
    done = run("fedpatch-relay", "status", "--json", "--state-dir", tmp_path)
    assert (done.code, done.document["running"]) == (1, False)
    assert run("fedpatch-relay", "status", "--state-dir", tmp_path).out == "the relay is not running\n"


@pytest.mark.medium
def test_status_is_that_of_the_directory_in_the_environment_that_run_uses(tmp_path):
    with lock_state_dir(tmp_path / "device"):
        done = run("fedpatch-relay", "status", "--json", environment={"FEDPATCH_RELAY_STATE_DIR": str(tmp_path)})
    assert (done.code, done.document["running"]) == (0, True)


@pytest.mark.medium
def test_print_config_shows_the_settings_and_no_password(tmp_path):
    variables = {"FEDPATCH_RELAY_UP_PASSWORD": "word", "FEDPATCH_RELAY_UP_USERNAME": "site-7"}
    done = run("fedpatch-relay", "run", *UP, "--print-config", environment=variables)
    assert done.code == 0
    assert 'up = "mqtts://hub.example"' in done.out
    assert "word" not in done.out.replace("password", "")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--up", "mqtts://hub.example"), 2, "device_id: not set"),
        ((*UP, "--quorum", "2"), 2, "--quorum"),
        ((*UP, "--down", f"mqtt://127.0.0.1:{free_port()}"), 3, "127.0.0.1"),
    ],
)
def test_relay_that_cannot_start_exits_with_the_documented_code(tmp_path, options, code, words):
    done = run("fedpatch-relay", "run", *options, "--state-dir", tmp_path / "state")
    assert (done.code, words in done.err) == (code, True), done.err
    assert json.dumps(done.out) == '""'
