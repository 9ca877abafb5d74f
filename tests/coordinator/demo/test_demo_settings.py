"""What the coordinator accepts as its configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.settings import MAX_CHUNKS_IN_FLIGHT, RunSettings
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.config.load import load, to_toml
from fedpatch.shared.errors import ConfigError
from fedpatch.shared.wire.messages import MAX_CHUNKS


def problems(cls=RunSettings, environ=None, **flags) -> list[str]:
    """What is said of these values."""
    with pytest.raises(ConfigError) as caught:
        load(cls, file=None, environ=environ or {}, flags=flags)
    return list(caught.value.problems)


@pytest.mark.parametrize("cls", [RunSettings, DemoSettings])
def test_the_defaults_are_within_their_own_limits(cls, tmp_path: Path):
    """A file with every default in it is accepted."""
    file = tmp_path / "fedpatch.toml"
    file.write_text(to_toml(cls()))
    assert load(cls, file=file, environ={}, flags={}) == cls()


@pytest.mark.parametrize("cls", [RunSettings, DemoSettings])
def test_every_setting_says_what_it_is(cls):
    """A sentence, and the unit wherever the name ends in one."""
    for one in settings_of(cls):
        assert re.fullmatch(r"[A-Z].*(\.|\.\.\.)", one.rules.help), one.name
        assert not one.name.endswith("_s") or one.rules.unit == "seconds"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("participation", 0.0),
        ("participation", 1.1),
        ("over_select", 0.9),
        ("over_select", 11.0),
        ("quorum", 0.0),
        ("quorum", 1.1),
        ("rounds", 0),
        ("min_cohort", 0),
        ("deadline_s", 0.0),
        ("grace_s", -1.0),
        ("chunk_kib", 7),
        ("chunk_kib", 1025),
        ("learning_rate", 0.0),
        ("batch_size", 0),
        ("seed", -1),
        ("encoding", "gzip"),
        ("fleet", "Fleet One"),
        ("broker", "mqtt://127.0.0.1:0"),
        ("metrics", ""),
    ],
)
def test_a_value_beyond_its_limits_is_refused(name, value):
    """Under the name of its option."""
    assert [problem.split(":")[0] for problem in problems(**{name: value})] == [f"--{name.replace('_', '-')}"]


def test_a_password_comes_from_the_environment_and_belongs_to_a_user():
    """It is refused without a user name, which may stand in the broker's URL."""
    secret = {"FEDPATCH_PASSWORD": "geheim"}
    assert problems(environ=secret) == ["$FEDPATCH_PASSWORD: set without a user name; set username too"]
    for flags in ({"username": "ada"}, {"broker": "mqtts://ada@broker"}):
        assert load(RunSettings, file=None, environ=secret, flags=flags).password == "geheim"


def test_a_password_in_the_url_is_refused_and_not_repeated():
    """It would show in every log line that names the broker."""
    (said,) = problems(broker="mqtt://ada:geheim@broker")
    assert said.startswith("--broker: ") and "geheim" not in said


def test_names_that_do_not_exist_are_told_with_their_lines_beside_all_else(tmp_path: Path):
    """Task, strategy and patch policy are looked up together with the check of every other value."""
    file = tmp_path / "fedpatch.toml"
    file.write_text('private = "afine"\nquorum = 2\ntask = "digts"\n\nstrategy = "fedavgg"\n')
    with pytest.raises(ConfigError) as caught:
        load(RunSettings, file=file, environ={}, flags={})
    said = {tuple(one.removeprefix(f"{file}:").split(": ")[:2]): one for one in caught.value.problems}
    assert said.keys() == {("1", "private"), ("2", "quorum"), ("3", "task"), ("5", "strategy")}
    assert "did you mean 'affine'?" in said["1", "private"]
    assert "did you mean 'digits'?" in said["3", "task"]
    assert "did you mean 'fedavg'?" in said["5", "strategy"]


def test_what_is_wrong_in_itself_is_blamed_for_nothing_else():
    """A limit that was mistyped says nothing about what it is the limit of."""
    assert problems(recruit_deadline_s=700, deadline_s="soon") == ["--deadline-s: expected a number, got 'soon'"]


def test_a_ca_needs_a_broker_with_tls_and_a_key_its_certificate():
    """They would give a feeling of safety and nothing else."""
    assert problems(ca_file="/ca.pem", broker="mqtt://broker") == [
        "--ca-file: of no use with mqtt://broker:1883; write mqtts:// to use TLS"
    ]
    assert problems(key_file="/key.pem", broker="mqtts://broker") == [
        "--key-file: set without a certificate; set cert_file too"
    ]
    settings = load(RunSettings, file=None, environ={}, flags={"ca_file": "~/ca.pem", "broker": "mqtts://broker"})
    assert settings.ca_file == Path.home() / "ca.pem"


def test_bounds_that_no_run_could_keep_are_refused():
    """A bound that is not understood bounds nothing; a fleet that may not be as large as is waited for never begins."""
    assert problems(norm_bound="clip", max_num_examples="many") == [
        "--norm-bound: 'clip' is no norm bound; write off, clip:X, reject:X or auto:F with a number above 0",
        "--max-num-examples: 'many' is no cap; write off, a number of examples, or auto:F with F times the median, 1 or more",
    ]
    assert problems(devices=20, max_devices=10) == [
        "--max-devices: 10 is less than devices = 20, which are waited for; make it larger"
    ]


def test_a_round_must_have_time_and_something_to_train():
    """Problems that only show when two settings are looked at together."""
    assert problems(recruit_deadline_s=30, deadline_s=30) == [
        "--recruit-deadline-s: 30 must be below deadline_s = 30: training takes time too"
    ]
    assert problems(epochs=0)[0].startswith("--epochs: 0 with steps = 0 leaves nothing to train")
    assert load(RunSettings, file=None, environ={}, flags={"epochs": 0, "steps": 5}).steps == 5


@given(slots=st.integers(1, 100), window=st.integers(1, 100), chunk=st.integers(8, 1024), model=st.integers(1, 2048))
def test_accepted_transfers_fit_the_broker_and_the_wire(slots, window, chunk, model):
    """Chunks in flight stay below what a broker queues; the largest model has no more chunks than a manifest counts."""
    flags = {"upload_slots": slots, "upload_window": window, "chunk_kib": chunk, "max_model_mib": model}
    fits = slots * window <= MAX_CHUNKS_IN_FLIGHT and -(-model * 1024 // chunk) <= MAX_CHUNKS
    if fits:
        load(RunSettings, file=None, environ={}, flags=flags)
    else:
        places = {problem.split(":")[0] for problem in problems(**flags)}
        assert places <= {"--upload-window", "--chunk-kib"}


def test_the_demo_asks_for_no_more_devices_than_it_starts():
    """Every round would fail otherwise, slowly."""
    assert problems(DemoSettings, devices=3, min_cohort=4) == [
        "--min-cohort: 4 is more than devices = 3, so every round would fail; make it smaller"
    ]
    assert problems(DemoSettings, broker="http://broker")[0].startswith("--broker: ")


def test_the_demos_coordinator_gets_the_demos_settings(tmp_path: Path):
    """All that both have in common is passed on; the broker and the directory are the demo's to choose."""
    demo = DemoSettings(rounds=3, quorum=0.5, devices=4, seed=7)
    run = demo.run_settings(broker="mqtt://127.0.0.1:18830", state_dir=tmp_path, fleet="demo")
    assert (run.rounds, run.quorum, run.devices, run.seed, run.target_ua) == (3, 0.5, 4, 7, 0.97)
    assert (run.broker, run.state_dir) == ("mqtt://127.0.0.1:18830", tmp_path)
