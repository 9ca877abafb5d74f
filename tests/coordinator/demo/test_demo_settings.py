"""Limits of the settings of `fedpatch run` and `fedpatch demo`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.setting_conflicts.rounds_and_transfer import MAX_CHUNKS_IN_FLIGHT
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.config.load import load, to_toml
from fedpatch.shared.errors import ConfigError
from fedpatch.shared.wire.messages import MAX_CHUNKS


def problems(cls=RunSettings, environ=None, **flags) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(cls, file=None, environ=environ or {}, flags=flags)
    return list(caught.value.problems)


def loaded(environ=None, **flags) -> RunSettings:
    return load(RunSettings, file=None, environ=environ or {}, flags=flags)


@pytest.mark.parametrize("cls", [RunSettings, DemoSettings])
def test_defaults_are_within_their_limits(cls, tmp_path: Path):
    file = tmp_path / "fedpatch.toml"
    file.write_text(to_toml(cls()))
    assert load(cls, file=file, environ={}, flags={}) == cls()


@pytest.mark.parametrize("cls", [RunSettings, DemoSettings])
def test_each_setting_has_a_help_sentence_and_its_unit(cls):
    for one in settings_of(cls):
        assert re.fullmatch(r"[A-Z].*(\.|\.\.\.)", one.rules.help), one.name
        assert not one.name.endswith("_s") or one.rules.unit == "seconds"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("participation", 0.0), ("participation", 1.1), ("over_select", 0.9), ("over_select", 11.0),
        ("quorum", 0.0), ("quorum", 1.1), ("rounds", 0), ("min_cohort", 0), ("deadline_s", 0.0),
        ("grace_s", -1.0), ("chunk_kib", 7), ("chunk_kib", 1025), ("learning_rate", 0.0), ("batch_size", 0),
        ("seed", -1), ("encoding", "gzip"), ("fleet", "Fleet One"), ("broker", "mqtt://127.0.0.1:0"),
        ("metrics", ""),
    ],
)  # fmt: skip
def test_value_beyond_its_limits_is_refused(name, value):
    assert [problem.split(":")[0] for problem in problems(**{name: value})] == [f"--{name.replace('_', '-')}"]


def test_password_from_the_environment_needs_a_user_name():
    secret = {"FEDPATCH_PASSWORD": "geheim"}
    assert problems(environ=secret) == ["$FEDPATCH_PASSWORD: set without a user name; set username too"]
    for flags in ({"username": "ada"}, {"broker": "mqtts://ada@broker"}):
        assert loaded(secret, **flags).password == "geheim"


def test_password_in_the_url_is_refused_and_not_repeated():
    (by_place,) = problems(broker="mqtt://ada:geheim@broker")
    assert by_place.startswith("--broker: ") and "geheim" not in by_place


def test_unknown_names_are_reported_with_line_and_suggestion(tmp_path: Path):
    file = tmp_path / "fedpatch.toml"
    file.write_text('private = "afine"\nquorum = 2\ntask = "digts"\n\nstrategy = "fedavgg"\n')
    with pytest.raises(ConfigError) as caught:
        load(RunSettings, file=file, environ={}, flags={})
    by_place = {tuple(one.removeprefix(f"{file}:").split(": ")[:2]): one for one in caught.value.problems}
    assert by_place.keys() == {("1", "private"), ("2", "quorum"), ("3", "task"), ("5", "strategy")}
    assert "did you mean 'affine'?" in by_place["1", "private"]
    assert "did you mean 'digits'?" in by_place["3", "task"]
    assert "did you mean 'fedavg'?" in by_place["5", "strategy"]


@pytest.mark.parametrize(
    ("cls", "flags", "starts"),
    [
        (
            RunSettings,
            {"recruit_deadline_s": 700, "deadline_s": "soon"},
            ["--deadline-s: expected a number, got 'soon'"],
        ),
        (
            RunSettings,
            {"recruit_deadline_s": 30, "deadline_s": 30},
            ["--recruit-deadline-s: 30 must be below deadline_s = 30"],
        ),
        (RunSettings, {"epochs": 0}, ["--epochs: "]),
        (RunSettings, {"ca_file": "/ca.pem", "broker": "mqtt://broker"}, ["--ca-file: "]),
        (RunSettings, {"key_file": "/key.pem", "broker": "mqtts://broker"}, ["--key-file: "]),
        (RunSettings, {"norm_bound": "clip", "max_num_examples": "many"}, ["--norm-bound: ", "--max-num-examples: "]),
        (RunSettings, {"aggregate": "median"}, ["--aggregate: 'median' is no rule"]),
        (RunSettings, {"aggregate": "trimmed:0.2", "strategy": "fedavg-adam"}, ["--aggregate: trimmed leaves out"]),
        (RunSettings, {"devices": 20, "max_devices": 10}, ["--max-devices: "]),
        (RunSettings, {"min_cohort": 20, "max_devices": 10}, ["--max-devices: "]),
        (DemoSettings, {"devices": 3, "min_cohort": 4}, ["--min-cohort: 4 is more than devices = 3"]),
        (DemoSettings, {"devices": 4, "secure": "groups"}, ["--devices: 4 is fewer than a masked group has"]),
        (DemoSettings, {"broker": "http://broker"}, ["--broker: "]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(cls, flags, starts):
    found = problems(cls, **flags)
    assert [problem.startswith(start) for problem, start in zip(found, starts, strict=True)] == [True] * len(starts)


def test_settings_that_complete_each_other_are_accepted():
    assert loaded(epochs=0, steps=5).steps == 5
    assert loaded(ca_file="~/ca.pem", broker="mqtts://broker").ca_file == Path.home() / "ca.pem"


@given(slots=st.integers(1, 100), window=st.integers(1, 100), chunk=st.integers(8, 1024), model=st.integers(1, 2048))
def test_accepted_transfers_fit_the_queue_of_the_broker_and_the_manifest(slots, window, chunk, model):
    flags = {"upload_slots": slots, "upload_window": window, "chunk_kib": chunk, "max_model_mib": model}
    fits = slots * window <= MAX_CHUNKS_IN_FLIGHT and -(-model * 1024 // chunk) <= MAX_CHUNKS
    if fits:
        load(RunSettings, file=None, environ={}, flags=flags)
    else:
        places = {problem.split(":")[0] for problem in problems(**flags)}
        assert places <= {"--upload-window", "--chunk-kib"}


def test_run_settings_of_a_demo_have_all_shared_settings(tmp_path: Path):
    demo = DemoSettings(rounds=3, quorum=0.5, devices=4, seed=7)
    run = demo.run_settings(broker="mqtt://127.0.0.1:18830", state_dir=tmp_path, fleet="demo")
    assert (run.rounds, run.quorum, run.devices, run.seed, run.target_ua) == (3, 0.5, 4, 7, 0.97)
    assert (run.broker, run.state_dir) == ("mqtt://127.0.0.1:18830", tmp_path)
